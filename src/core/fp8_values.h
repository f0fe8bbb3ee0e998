#pragma once

// The values that e4m3 numbers and their scales stand for, in f32 or f64, on the CPU.

#include "core/fp8_call.h"

namespace rootdk {

// The keys are without their mean, and rotated where they were.
struct Fp8Values {
  Tensor q, k, v;
};

Fp8Values values_of(const QuantizedViews& numbers, const AttentionShape& shape, const AttentionParams& params,
                    DType dtype, Executor& executor);

// The numbers and scales of a call whose q, k and v are e4m3. Nothing is written through these views.
QuantizedViews numbers_of(const Fp8ForwardCall& call);

// x times H D / sqrt(c) of Fp8Params::rotate, and back (by the transposed matrix).
void rotate_channels(std::span<float> x);
void rotate_channels_back(std::span<float> x);

}  // namespace rootdk
