#pragma once

// The product of activations with a matrix of weights that stays in the type it is stored in. Internal to the library:
// the layers call it.

#include <cstdint>

#include "core/implementation.h"
#include "rootdk/attention.h"

namespace rootdk {

enum class WeightFormat : std::int32_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  i8 = 3,  // integers in -127 to 127 times the scale of the row
  i4 = 4,  // integers in -8 to 7 times the scale of a block of 32 columns
};

inline constexpr std::int64_t kWeightBlock = 32;  // columns of a block of i4

// A matrix [rows, columns], row after row.
struct WeightMatrix {
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0, columns = 0;
  // i4: 16 bytes a block, byte j with the column j of the block plus 8 in its low half and column j + 16 plus 8 in its
  // high one. columns is then a multiple of 32.
  const void* data = nullptr;
  const float* row_scales = nullptr;            // i8: [rows]
  const std::uint16_t* block_scales = nullptr;  // i4: bf16 [rows, columns / 32]
};

constexpr std::int64_t bytes_of_row(WeightFormat format, std::int64_t columns) {
  switch (format) {
    case WeightFormat::f32: return columns * 4;
    case WeightFormat::bf16:
    case WeightFormat::f16: return columns * 2;
    case WeightFormat::i8: return columns;
    case WeightFormat::i4: return columns / 2;
  }
  return 0;
}

// y = x W^T + b. A row of y has the same bits for any number of rows and threads.
struct LinearCall {
  WeightMatrix weight = {};
  std::int64_t rows = 0;
  const float* x = nullptr;     // [rows, weight.columns]
  const float* bias = nullptr;  // [weight.rows], or null
  float* y = nullptr;           // [rows, weight.rows]
  Execution execution = {};
};

inline Device device_of(const LinearCall&) { return {}; }

// Trusts its input. src/reference/linear.cpp says what it computes.
ROOTDK_API void linear(const LinearCall& call);

using LinearImplementation = Implementation<LinearCall>;
namespace reference {
std::span<const LinearImplementation> linear_implementations();
// Element (row, column) of a matrix of weights, exactly.
double weight_at(const WeightMatrix& weight, std::int64_t row, std::int64_t column);
}  // namespace reference
namespace cpu {
std::span<const LinearImplementation> linear_implementations();
}  // namespace cpu

}  // namespace rootdk
