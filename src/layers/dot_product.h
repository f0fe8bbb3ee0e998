#pragma once

// The library's attention as a layer: values in, a value out, gradients through attention_backward.

#include <memory>

#include "layers/tape.h"
#include "rootdk/attention.h"
#include "rootdk/positions.h"

namespace rootdk {

// A matrix [batch * len, heads * dim] seen as [batch, heads, len, dim].
ConstTensorView heads_of(const Tensor& matrix, std::int64_t batch, std::int64_t heads);
TensorView heads_of(Tensor& matrix, std::int64_t batch, std::int64_t heads);

// Which keys are padding: lengths where padding comes last, else a bit a key. At most one is defined.
struct PaddingMask {
  Tensor kv_lengths{};  // i32 [batch]
  Tensor keep{};        // bool [batch, 1, 1, kv_len]
};

// What an observer asks of one attention layer; filled by the forward pass.
struct AttentionCapture {
  bool want_weights = false;   // the n x n matrix
  bool want_stats = false;     // max_logit and entropy of every row
  bool want_operands = false;  // q, k and v as the kernel takes them: normed and rotated
  // Everything that fits where n x n does not: the statistics of every row, column_mass, a pooled map of at most
  // map_side x map_side cells, and the exact weights of sampled_rows evenly spaced rows (all, where there are fewer).
  bool want_profile = false;
  std::int64_t map_side = 64, sampled_rows = 64;

  Tensor weights{};      // [batch, heads, q_len or weight_rows, kv_len]
  Tensor q{}, k{}, v{};  // [batch, heads or kv_heads, len, head_dim or value_dim], with want_operands
  // With want_operands, where the call has them: relative_table [heads, entries], sinks [heads] and alibi [heads] of
  // DotProductInput.
  Value relative_table{}, sinks{};
  std::shared_ptr<const Tensor> alibi{};
  std::int64_t relative_zero = 0;
  Tensor weight_rows{};                                   // i32 [sampled rows], with want_profile
  Tensor max_logit{}, entropy{}, max_weight{}, sum_p2{};  // [batch, heads, q_len]; the last two with want_profile
  Tensor column_mass{};                                   // [batch, heads, kv_len], with want_profile
  Tensor pooled_map{};                                    // [batch, heads, cells, cells], with want_profile
};

struct DotProductInput {
  std::int64_t batch = 1, heads = 1, kv_heads = 1;
  Value q{};                                     // [batch q_len, heads head_dim]
  Value k{}, v{};                                // [batch kv_len, kv_heads head_dim]
  Value relative_table{};                        // AttentionParams::relative_table, or null
  Value bias{};                                  // [batch, heads, q_len, kv_len], or null
  Value sinks{};                                 // [heads], or null
  Value additive_v{};                            // [heads, head_dim] with the additive score, or null
  std::shared_ptr<const PaddingMask> padding{};  // or null
  std::shared_ptr<const Tensor> alibi{};         // f32 [heads], or null
};

// params with the tensors of the input.
AttentionParams bind_tensors(const DotProductInput& input, AttentionParams params);
// Adds the time since `start` and the multiply-adds of a call to context.times, where it is given.
void add_attention_times(const Context& context, double start, const ConstTensorView& q, std::int64_t kv_len,
                         bool causal);

// params carries what is not a tensor: scale, softcap, causal, windows, relative_zero. Returns [batch q_len, heads
// head_dim].
Value dot_product_attention(Context& context, const DotProductInput& input, AttentionParams params,
                            AttentionCapture* capture = nullptr);

// T5's bias [buckets, heads] as the table over distances [heads, 2 max_distance + 1].
Value t5_table(Context& context, const Value& weights, const T5BucketParams& params);

// Transformer-XL's second term: q [batch q_len, heads head_dim], v_bias [heads head_dim], r [distances, heads head_dim]
// with row t for distance t; the result [batch, heads, q_len, kv_len] is a bias for dot_product_attention.
struct RelativeTermShape {
  std::int64_t batch = 1, heads = 1, kv_len = 0;
};
Value transformer_xl_term(Context& context, const Value& q, const Value& v_bias, const Value& r,
                          const RelativeTermShape& shape, double scale);

}  // namespace rootdk
