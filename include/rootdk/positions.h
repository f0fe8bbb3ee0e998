#pragma once

// Positional encodings. Those that are added to the input (sinusoidal, learned), those that rotate q and k (RoPE), and
// those that enter the logits (T5 buckets, ALiBi slopes, Transformer-XL): one function each.
// Tensors are f32, bf16, f16 or f64 and may be strided; computation is in double. CPU only.

#include <cstdint>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

// --- added to the input -------------------------------------------------------------------------------------------

enum class SinusoidalLayout : std::int32_t {
  interleaved = 0,   // sin, cos, sin, cos, ... ("Attention is all you need")
  concatenated = 1,  // all sines, then all cosines (Marian, tensor2tensor)
};

struct SinusoidalParams {
  SinusoidalLayout layout = SinusoidalLayout::interleaved;
  double base = 10000.0;
  std::int64_t offset = 0;  // position of the first row
};

// Fills out [len, dim] with the encoding: angle = position / base^(2 i / dim).
ROOTDK_API void sinusoidal_positions(TensorView out, const SinusoidalParams& params = {});

// x [batch, len, dim] += table[positions] for a learned table [max_len, dim]; positions i32 or i64 [batch, len], or not
// given: offset, offset + 1, ...
ROOTDK_API void add_learned_positions(TensorView x, ConstTensorView table, ConstTensorView positions = {},
                                      std::int64_t offset = 0);
// grad_table is overwritten with the gradient: rows of grad_x summed in order per position.
ROOTDK_API void add_learned_positions_backward(ConstTensorView grad_x, TensorView grad_table,
                                               ConstTensorView positions = {}, std::int64_t offset = 0);

// --- RoPE ---------------------------------------------------------------------------------------------------------

enum class RopeLayout : std::int32_t {
  half_split = 0,   // pairs (d, d + rotary_dim / 2): GPT-NeoX, LLaMA in the transformers layout
  interleaved = 1,  // pairs (2 d, 2 d + 1): GPT-J, the RoFormer paper
};

enum class RopeScaling : std::int32_t {
  none = 0,
  linear = 1,  // positions divided by factor
  ntk = 2,     // base * factor^(d / (d - 2))
  yarn = 3,    // per-frequency blend of the two, with the attention factor 0.1 ln(factor) + 1
  llama3 = 4,  // per-frequency blend by wavelength
};

struct RopeParams {
  RopeLayout layout = RopeLayout::half_split;
  std::int64_t rotary_dim = 0;  // leading dimensions that are rotated, even; 0: all of head_dim
  double base = 10000.0;

  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;                                   // by which the context is stretched
  std::int64_t original_max_position = 0;                // yarn and llama3: the context length of pre-training
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn: rotations that bound the blend
  bool truncate = true;                                  // yarn: round the bounds to whole dimensions
  double attention_factor = 0.0;                         // yarn: factor on cos and sin; 0: 0.1 ln(factor) + 1
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3

  std::int64_t offset = 0;  // position of the first row where no positions are given
};

// Rotates x [batch, heads, len, head_dim] into out (the same shape; may be x itself). positions: i32 or i64 [batch,
// len] or [1, len]; not given: offset, offset + 1, ...
ROOTDK_API void rope(ConstTensorView x, TensorView out, const RopeParams& params = {}, ConstTensorView positions = {});
// The gradient: grad_x = rotation transposed times grad_out. grad_x may be grad_out itself.
ROOTDK_API void rope_backward(ConstTensorView grad_out, TensorView grad_x, const RopeParams& params = {},
                              ConstTensorView positions = {});
// The angular frequency of each rotated pair, out f64 or f32 [rotary_dim / 2], scaling applied; returns the factor on
// cos and sin (1 except for yarn).
ROOTDK_API double rope_frequencies(TensorView out, std::int64_t head_dim, const RopeParams& params = {});

// --- in the logits ------------------------------------------------------------------------------------------------

struct T5BucketParams {
  bool bidirectional = true;  // encoder; false: decoder, where keys to the right share bucket 0
  std::int64_t buckets = 32;
  std::int64_t max_distance = 128;
};

// The bucket of the distance (query position - key position).
ROOTDK_API std::int64_t t5_bucket(std::int64_t distance, const T5BucketParams& params = {});
// weights [buckets, heads] (T5's relative_attention_bias) spread into table [heads, 2 max_distance + 1], the
// relative_table of attention() with relative_zero = max_distance.
ROOTDK_API void t5_relative_table(ConstTensorView weights, TensorView table, const T5BucketParams& params = {});
ROOTDK_API void t5_relative_table_backward(ConstTensorView grad_table, TensorView grad_weights,
                                           const T5BucketParams& params = {});

// The slopes of "Train short, test long" for any number of heads, out f32 or f64 [heads]: the alibi_slopes of
// attention().
ROOTDK_API void alibi_slopes(TensorView out);

// Transformer-XL: logit(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i - j}) scale. Pass q + u as the query, and this
// second term, already scaled, as the bias. q [batch, heads, q_len, head_dim]; v_bias [heads, head_dim]; r [heads,
// distances, head_dim], the projected encodings, where entry t belongs to distance t - zero; bias [batch, heads, q_len,
// kv_len]. Distances outside r give 0. Query i has key position i + (kv_len - q_len).
struct TransformerXlParams {
  double scale = 1.0;
  std::int64_t zero = 0;
};
ROOTDK_API void transformer_xl_bias(ConstTensorView q, ConstTensorView v_bias, ConstTensorView r, TensorView bias,
                                    const TransformerXlParams& params = {});
// Gradients are overwritten; any may be left out.
ROOTDK_API void transformer_xl_bias_backward(ConstTensorView q, ConstTensorView v_bias, ConstTensorView r,
                                             ConstTensorView grad_bias, TensorView grad_q, TensorView grad_v_bias,
                                             TensorView grad_r, const TransformerXlParams& params = {});

}  // namespace rootdk
