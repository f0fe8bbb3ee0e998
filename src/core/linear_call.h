#pragma once

// The product of activations with a matrix of weights that stays in the type it is stored in. Internal to the library:
// the layers call it.

#include <cstdint>
#include <span>
#include <string_view>

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

constexpr bool is_integer(WeightFormat format) { return format >= WeightFormat::i8; }

inline constexpr std::int64_t kWeightBlock = 32;  // columns of a block
inline constexpr std::int64_t kWeightGroup = 16;  // rows of a group
inline constexpr std::int64_t kWeightQuad = 4;    // columns that lie side by side

constexpr std::int64_t blocks_of(std::int64_t columns) { return (columns + kWeightBlock - 1) / kWeightBlock; }
constexpr std::int64_t groups_of(std::int64_t rows) { return (rows + kWeightGroup - 1) / kWeightGroup; }

// A matrix [rows, columns]. Floats lie row after row. Integers lie in groups of 16 rows and blocks of 32 columns, so
// that a vector holds 4 columns of up to 16 rows: see IntegerAt. The last group and the last block are padded.
struct WeightMatrix {
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0, columns = 0;
  bool rounds_x = false;  // bf16: what they multiply is rounded to bf16 first
  const void* data = nullptr;
  const float* row_scales = nullptr;            // i8: [rows]
  const std::uint16_t* block_scales = nullptr;  // i4: bf16 [groups, blocks, 16]
};

// Where a matrix of integers keeps element (row, column).
//   i8: int8 [group, quad of columns, row of the group, column of the quad]
//   i4: bytes [group, block, 4, row of the group, column of the quad]. Byte [.., q, r, c] has quad q of the block in
//   its
//       low half and quad q + 4 in its high one, each plus 8.
struct IntegerAt {
  std::int64_t byte = 0;
  int shift = 0;           // i4: 0 or 4
  std::int64_t scale = 0;  // i4: index in block_scales
};

constexpr IntegerAt integer_at(WeightFormat format, std::int64_t columns, std::int64_t row, std::int64_t column) {
  const std::int64_t blocks = blocks_of(columns), group = row / kWeightGroup, block = column / kWeightBlock;
  const std::int64_t quad = column % kWeightBlock / kWeightQuad, quads = kWeightBlock / kWeightQuad;
  const std::int64_t inside = row % kWeightGroup * kWeightQuad + column % kWeightQuad;
  constexpr std::int64_t kBytes = kWeightGroup * kWeightQuad;
  const std::int64_t scale = (group * blocks + block) * kWeightGroup + row % kWeightGroup;
  if (format == WeightFormat::i8) {
    return {.byte = ((group * blocks + block) * quads + quad) * kBytes + inside, .scale = scale};
  }
  return {.byte = ((group * blocks + block) * (quads / 2) + quad % (quads / 2)) * kBytes + inside,
          .shift = quad < quads / 2 ? 0 : 4,
          .scale = scale};
}

// Bytes of a row of floats; of a group of rows of integers.
constexpr std::int64_t bytes_of_row(WeightFormat format, std::int64_t columns) {
  return columns * (format == WeightFormat::f32 ? 4 : 2);
}
constexpr std::int64_t bytes_of_group(WeightFormat format, std::int64_t columns) {
  return blocks_of(columns) * kWeightBlock * kWeightGroup / (format == WeightFormat::i8 ? 1 : 2);
}
constexpr std::int64_t bytes_of(const WeightMatrix& m) {
  return is_integer(m.format) ? groups_of(m.rows) * bytes_of_group(m.format, m.columns)
                              : m.rows * bytes_of_row(m.format, m.columns);
}

// With the scales: what a product reads of its weights.
constexpr std::int64_t bytes_with_scales(const WeightMatrix& m) {
  return bytes_of(m) + (m.row_scales ? m.rows * 4 : 0) +
         (m.block_scales ? groups_of(m.rows) * blocks_of(m.columns) * kWeightGroup * 2 : 0);
}

// One matrix of a call: y = x W^T + b.
struct LinearProduct {
  WeightMatrix weight = {};
  const float* bias = nullptr;  // [weight.rows], or null
  float* y = nullptr;           // [rows, weight.rows]
};

// The same x against one matrix or several, which have the same format, columns and rounds_x: queries, keys and values
// are one call. A row of y has the same bits for any number of rows, products and threads. Integer weights multiply
// integers: see the reference.
struct LinearCall {
  std::span<const LinearProduct> products = {};
  std::int64_t rows = 0;
  const float* x = nullptr;  // [rows, columns]
  Execution execution = {};
};

// Whether two matrices may share a call.
constexpr bool share_x(const WeightMatrix& a, const WeightMatrix& b) {
  return a.format == b.format && a.columns == b.columns && a.rounds_x == b.rounds_x;
}

inline Device device_of(const LinearCall&) { return {}; }

// Trusts its input. src/reference/linear.cpp says what it computes.
ROOTDK_API void multiply_weights(const LinearCall& call);

// Whether bf16 weights that round x (rounds_x) are multiplied by instructions for bf16 here, and not widened.
ROOTDK_API bool has_bf16_products();

using LinearImplementation = Implementation<LinearCall>;
namespace reference {
std::span<const LinearImplementation> linear_implementations();
// Element (row, column) of a matrix of weights, exactly.
double weight_at(const WeightMatrix& weight, std::int64_t row, std::int64_t column);
}  // namespace reference
namespace cpu {
std::span<const LinearImplementation> linear_implementations();
// The same of one of these implementations.
bool has_bf16_products(std::string_view implementation);
}  // namespace cpu

}  // namespace rootdk
