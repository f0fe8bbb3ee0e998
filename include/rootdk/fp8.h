#pragma once

// Attention in e4m3. q, k and v become 8-bit numbers with scales, the products run on them, and the output is bf16, f16
// or f32.
//
//     attention(q, k, v, out, {.compute = DType::f8e4m3});       // quantises, then attends
//
//     const QuantizedTensors t = quantize_for_attention(q, k, v);     // the two apart: quantise once, attend often
//     attention(t.q, t.k, t.v, out, {.fp8 = t.scales()});
//
// What is computed, for one head (docs/fp8.md; src/reference/quantize.cpp and src/reference/attention_fp8.cpp are the
// executable specification):
//
//     mean  = the mean key of the sequence, in f32: 128 keys at a time in order, then these sums in order, then divided
//             by the number of keys. Zero under a softcap or a sink, which see more than differences of scores.
//     k8    = e4m3((k - mean) * 448 / amax)     amax over a block of 128 keys; its scale is amax / 448
//     q8    = e4m3(q * 448 / amax)              amax over a block of 128 rows of a head
//     v8    = e4m3(v * 448 / amax)              amax over the keys of the sequence, for each channel
//     s     = (q8 . k8) * q_scale * k_scale * scale / temperature, then softcap, position, bias and masks
//     m     = the largest s of the row (a kernel may use the largest so far)
//     p8    = e4m3(256 * exp(s - m))
//     out   = sum p8 v8 / 256 / (sum exp(s - m) + sink) * v_scale
//
// - Rounding to e4m3 is to nearest, ties to even, and saturates at 448. Where amax / 448 is below 2^-126 (as where all
//   are zero) the scale is 1. 448 / amax and the product with it are f32.
// - Blocks of 128 count from the first row of each sequence.
// - Keys from kv_lengths on take no part: not in the mean, not in an amax; their numbers are 0.
// - An element that is not finite becomes NaN. It counts as 0 in the mean and is left out of amax, so that it spoils
//   nothing but the scores of its key (or its channel of out).
// - Fp8Params::rotate: q and k - mean are first multiplied by H D / sqrt(c): D the sign of each channel d, negative
//   where the top bit of d * 0x9e3779b1 (32 bits) is set, H the Hadamard matrix of size c, the largest power of two
//   that divides head_dim, for each c channels; sums of pairs at distances 1, 2, 4, ... in f32.
// - lse and max_logit are those of the original keys: q . mean, of the original q, is added back in f32 (q_shift).
// - Dropout acts on p8. Statistics are those of the unrounded weights.

#include <cstddef>
#include <cstdint>

#include "rootdk/attention.h"
#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

inline constexpr std::int64_t kFp8Block = 128;         // rows of q, and keys, that share a scale
inline constexpr double kFp8WeightFactor = 256;        // of exp(s - m) before it is rounded
inline constexpr float kFp8SmallestScale = 0x1p-126f;  // amax / 448 below it: the scale is 1

// How many scales a tensor of `rows` rows has. Packed sequences: rows is the total, and the block of row i of sequence
// s is starts[s] / 128 + s + i / 128, so that no kernel has to look at the other sequences. Some scales are then
// unused.
constexpr std::int64_t fp8_blocks(std::int64_t rows, std::int64_t packed_sequences = 0) {
  return packed_sequences > 0 ? rows / kFp8Block + packed_sequences : (rows + kFp8Block - 1) / kFp8Block;
}
constexpr std::int64_t fp8_first_block(std::int64_t start, std::int64_t packed_sequence) {
  return start / kFp8Block + packed_sequence;
}

// What quantize_for_attention writes. All are needed but q_shift and key_mean; "batch" of v_scales and key_mean is the
// number of sequences where they are packed. On CUDA they are the caller's memory.
struct QuantizedViews {
  TensorView q{}, k{}, v{};  // f8e4m3, the shapes of the originals
  TensorView q_scales{};     // f32 [batch, heads, fp8_blocks(q_len)]
  TensorView k_scales{};     // f32 [batch, kv_heads, fp8_blocks(kv_len)]
  TensorView v_scales{};     // f32 [batch, kv_heads, value_dim]
  TensorView q_shift{};      // f32 [batch, heads, q_len]: q . mean, 0 where no mean is taken off
  TensorView key_mean{};     // f32 [batch, kv_heads, head_dim]

  // AttentionParams::fp8 of the calls that attend to them.
  Fp8Params scales() const {
    return {.q_scales = q_scales, .k_scales = k_scales, .v_scales = v_scales, .q_shift = q_shift};
  }
};

// q, k, v f32, bf16 or f16. Of params it takes what decides about blocks and the mean: kv_lengths, q_starts, kv_starts,
// softcap, sinks and fp8.rotate, so that the params of the attention call that follows serve both.
ROOTDK_API void quantize_for_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                       const QuantizedViews& to, const AttentionParams& params = {},
                                       const Execution& execution = {});

// Device scratch memory that the call wants in CudaExecution::workspace; 0 on the CPU.
ROOTDK_API std::size_t quantize_for_attention_workspace(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                                        const QuantizedViews& to, const AttentionParams& params = {},
                                                        const Execution& execution = {});

// quantize_for_attention with memory for the result, on the CPU.
struct QuantizedTensors {
  Tensor q, k, v, q_scales, k_scales, v_scales, q_shift, key_mean;

  ROOTDK_API QuantizedViews views() &;
  ROOTDK_API Fp8Params scales() const&;
  void scales() const&& = delete;
};
ROOTDK_API QuantizedTensors quantize_for_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                                   const AttentionParams& params = {}, const Execution& execution = {});

}  // namespace rootdk
