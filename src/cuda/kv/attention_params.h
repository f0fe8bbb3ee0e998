#pragma once

// attend() as a case of attention(): one causal sequence of queries. The page tables say which keys exist.

#include "core/kv_call.h"

namespace rootdk::cuda::kv {

inline AttentionParams attention_params(const AttendParams& p) {
  return {.softcap = p.softcap,
          .causal = true,
          .window_left = p.window_left,
          .relative_table = p.relative_table,
          .relative_zero = p.relative_zero,
          .alibi_slopes = p.alibi_slopes,
          .sinks = p.sinks};
}

inline AttentionShape attention_shape(const KvShape& s) {
  return {.batch = 1,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .q_len = s.tokens,
          .kv_len = s.page_size,
          .head_dim = s.head_dim,
          .value_dim = s.value_dim};
}

}  // namespace rootdk::cuda::kv
