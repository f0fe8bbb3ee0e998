#include "layers/stored_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/check.h"

namespace rootdk {
namespace {

void widen_integers(const WeightMatrix& m, std::int64_t row, float* out) {
  for (std::int64_t i = 0; i < m.columns; ++i) {
    const IntegerAt at = integer_at(m.format, m.columns, row, i);
    if (m.format == WeightFormat::i8) {
      out[i] = m.row_scales[row] * static_cast<float>(static_cast<const std::int8_t*>(m.data)[at.byte]);
    } else {
      const int integer = (static_cast<const std::uint8_t*>(m.data)[at.byte] >> at.shift & 15) - 8;
      out[i] = static_cast<float>(std::bit_cast<BFloat16>(m.block_scales[at.scale])) * static_cast<float>(integer);
    }
  }
}

// Memory of a quantised matrix. Tensors ask for large pages.
struct Integers {
  Tensor data{}, row_scales{}, block_scales{};

  std::uint8_t* bytes() { return data.view().as<std::uint8_t>(); }
  float& row_scale(std::int64_t row) { return row_scales.view().as<float>()[row]; }
  std::uint16_t& block_scale(std::int64_t at) { return block_scales.view().as<std::uint16_t>()[at]; }
};

// The integers of a row of i8, one a number, and its scale.
void bytes_of_row(const float* row, std::int64_t columns, std::int8_t* integers, float& scale) {
  float largest = 0;
  for (std::int64_t i = 0; i < columns; ++i) largest = std::max(largest, std::abs(row[i]));
  scale = largest / 127.0f;
  const float factor = largest > 0 ? 127.0f / largest : 0.0f;
  for (std::int64_t i = 0; i < columns; ++i) {
    integers[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(row[i] * factor), -127.0f, 127.0f));
  }
}

// The same of a block of i4. The number of largest magnitude becomes -8, which has no positive counterpart: one more
// integer than with 7.
void halves_of_block(const float* block, std::int8_t* integers, std::uint16_t& scale) {
  float extreme = 0;
  for (std::int64_t i = 0; i < kWeightBlock; ++i) {
    if (std::abs(block[i]) > std::abs(extreme)) extreme = block[i];
  }
  const BFloat16 rounded(extreme / -8.0f);
  scale = std::bit_cast<std::uint16_t>(rounded);
  const auto step = static_cast<float>(rounded);
  for (std::int64_t i = 0; i < kWeightBlock; ++i) {
    const float nearest = step == 0 ? 0.0f : std::nearbyint(block[i] / step);
    integers[i] = static_cast<std::int8_t>(std::clamp(nearest, -8.0f, 7.0f));
  }
}

// One row of a matrix into the memory of its group.
class RowQuantiser {
 public:
  RowQuantiser(const WeightMatrix& from, WeightFormat to, Integers& made)
      : from_(from),
        to_(to),
        made_(made),
        row_(static_cast<std::size_t>(from.columns)),
        integers_(static_cast<std::size_t>(from.columns)) {}

  void quantise(std::int64_t row) {
    widen_row(from_, row, row_.data());
    if (to_ == WeightFormat::i8) {
      bytes_of_row(row_.data(), from_.columns, integers_.data(), made_.row_scale(row));
    }
    for (std::int64_t k = 0; to_ == WeightFormat::i4 && k < from_.columns; k += kWeightBlock) {
      const std::int64_t scale = integer_at(to_, from_.columns, row, k).scale;
      halves_of_block(row_.data() + k, integers_.data() + k, made_.block_scale(scale));
    }
    for (std::int64_t k = 0; k < from_.columns; k += kWeightQuad) scatter(row, k);
  }

 private:
  // The quad of columns from k on, whose bytes lie side by side.
  void scatter(std::int64_t row, std::int64_t k) {
    const IntegerAt at = integer_at(to_, from_.columns, row, k);
    std::uint8_t* bytes = made_.bytes() + at.byte;
    const std::int8_t* integers = integers_.data() + k;
    const std::int64_t count = std::min(kWeightQuad, from_.columns - k);
    for (std::int64_t i = 0; i < count; ++i) {
      bytes[i] =
          static_cast<std::uint8_t>(to_ == WeightFormat::i4 ? bytes[i] | (integers[i] + 8) << at.shift : integers[i]);
    }
  }

  const WeightMatrix& from_;
  WeightFormat to_;
  Integers& made_;
  std::vector<float> row_;
  std::vector<std::int8_t> integers_;
};

}  // namespace

std::string_view name_of(WeightFormat format) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "int8", "int4"};
  return kNames[static_cast<std::size_t>(format)];
}

WeightMatrix matrix_of(const Node& parameter) {
  if (const StoredMatrix* stored = parameter.stored()) return stored->matrix;
  return {.rows = parameter.rows(), .columns = parameter.width(), .data = parameter.data()};
}

void widen_row(const WeightMatrix& m, std::int64_t row, float* out) {
  auto widen = [&](const auto* data) {
    data += row * m.columns;
    for (std::int64_t i = 0; i < m.columns; ++i) out[i] = static_cast<float>(data[i]);
  };
  switch (m.format) {
    case WeightFormat::f32: return widen(static_cast<const float*>(m.data));
    case WeightFormat::bf16: return widen(static_cast<const BFloat16*>(m.data));
    case WeightFormat::f16: return widen(static_cast<const Float16*>(m.data));
    case WeightFormat::i8:
    case WeightFormat::i4: return widen_integers(m, row, out);
  }
}

std::shared_ptr<const StoredMatrix> quantise(const WeightMatrix& from, WeightFormat to, Executor& executor) {
  require(to == WeightFormat::i8 || to == WeightFormat::i4, "quantise: ", name_of(to), " is neither int8 nor int4");
  require(to == WeightFormat::i8 || from.columns % kWeightBlock == 0, "quantise: ", from.columns,
          " columns are not a multiple of the ", kWeightBlock, " of a block of int4");
  auto made = std::make_shared<Integers>();
  WeightMatrix matrix{.format = to, .rows = from.rows, .columns = from.columns};
  const std::int64_t groups = groups_of(from.rows);
  made->data = Tensor(DType::i8, {bytes_of(matrix)});
  if (to == WeightFormat::i8) made->row_scales = Tensor(DType::f32, {from.rows});
  if (to == WeightFormat::i4)
    made->block_scales = Tensor(DType::bf16, {groups * blocks_of(from.columns), kWeightGroup});
  executor.parallel_for(groups, [&](std::int64_t group) {
    RowQuantiser quantiser(from, to, *made);
    const std::int64_t end = std::min(from.rows, (group + 1) * kWeightGroup);
    for (std::int64_t row = group * kWeightGroup; row < end; ++row) quantiser.quantise(row);
  });
  matrix.data = made->bytes();
  if (to == WeightFormat::i8) matrix.row_scales = &made->row_scale(0);
  if (to == WeightFormat::i4) matrix.block_scales = &made->block_scale(0);
  return std::make_shared<StoredMatrix>(StoredMatrix{.matrix = matrix, .owner = std::move(made)});
}

}  // namespace rootdk
