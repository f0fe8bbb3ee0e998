#pragma once

// The sizes of attend() as those of one attention() call. Which keys there are is told apart, by page tables.

#include "core/kv_call.h"

namespace rootdk::cuda::kv {

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
