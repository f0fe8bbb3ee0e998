#include "layers/stored_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/check.h"

namespace rootdk {
namespace {

float scale_of_block(const WeightMatrix& matrix, std::int64_t block) {
  return static_cast<float>(std::bit_cast<BFloat16>(matrix.block_scales[block]));
}

void widen_half_bytes(const WeightMatrix& matrix, std::int64_t row, float* out) {
  constexpr std::int64_t kHalf = kWeightBlock / 2;
  const std::int64_t blocks = matrix.columns / kWeightBlock;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t block = row * blocks + b;
    const float scale = scale_of_block(matrix, block);
    const auto* bytes = static_cast<const std::uint8_t*>(matrix.data) + block * kHalf;
    for (std::int64_t i = 0; i < kHalf; ++i) {
      out[b * kWeightBlock + i] = scale * static_cast<float>((bytes[i] & 15) - 8);
      out[b * kWeightBlock + kHalf + i] = scale * static_cast<float>((bytes[i] >> 4) - 8);
    }
  }
}

// Memory of a quantised matrix.
struct Integers {
  std::vector<std::uint8_t> data;
  std::vector<float> row_scales;
  std::vector<std::uint16_t> block_scales;
};

void bytes_of_row(const float* row, std::int64_t columns, std::uint8_t* data, float& scale) {
  float largest = 0;
  for (std::int64_t i = 0; i < columns; ++i) largest = std::max(largest, std::abs(row[i]));
  scale = largest / 127.0f;
  const float factor = largest > 0 ? 127.0f / largest : 0.0f;
  for (std::int64_t i = 0; i < columns; ++i) {
    const float number = std::nearbyint(row[i] * factor);
    data[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(number, -127.0f, 127.0f)));
  }
}

// The number of largest magnitude becomes -8, which has no positive counterpart: one more step than with 7.
void half_bytes_of_block(const float* block, std::uint8_t* bytes, std::uint16_t& scale) {
  float extreme = 0;
  for (std::int64_t i = 0; i < kWeightBlock; ++i) {
    if (std::abs(block[i]) > std::abs(extreme)) extreme = block[i];
  }
  const BFloat16 rounded(extreme / -8.0f);
  scale = std::bit_cast<std::uint16_t>(rounded);
  const auto step = static_cast<float>(rounded);
  auto number = [&](float w) {
    const float nearest = step == 0 ? 0.0f : std::nearbyint(w / step);
    return static_cast<unsigned>(static_cast<int>(std::clamp(nearest, -8.0f, 7.0f)) + 8);
  };
  constexpr std::int64_t kHalf = kWeightBlock / 2;
  for (std::int64_t i = 0; i < kHalf; ++i) {
    bytes[i] = static_cast<std::uint8_t>(number(block[i]) | number(block[i + kHalf]) << 4);
  }
}

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
      widen(static_cast<const std::int8_t*>(m.data));
      for (std::int64_t i = 0; i < m.columns; ++i) out[i] *= m.row_scales[row];
      return;
    case WeightFormat::i4: return widen_half_bytes(m, row, out);
  }
}

std::shared_ptr<const StoredMatrix> quantise(const WeightMatrix& from, WeightFormat to, Executor& executor) {
  require(to == WeightFormat::i8 || to == WeightFormat::i4, "quantise: ", name_of(to), " is neither int8 nor int4");
  require(to == WeightFormat::i8 || from.columns % kWeightBlock == 0, "quantise: ", from.columns,
          " columns are not a multiple of the ", kWeightBlock, " of a block of int4");
  auto made = std::make_shared<Integers>();
  const std::int64_t row_bytes = rootdk::bytes_of_row(to, from.columns), blocks = from.columns / kWeightBlock;
  made->data.resize(static_cast<std::size_t>(from.rows * row_bytes));
  (to == WeightFormat::i8 ? made->row_scales.resize(static_cast<std::size_t>(from.rows))
                          : made->block_scales.resize(static_cast<std::size_t>(from.rows * blocks)));
  constexpr std::int64_t kRowsOfTask = 64;
  executor.parallel_for((from.rows + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task) {
    std::vector<float> row(static_cast<std::size_t>(from.columns));
    const std::int64_t end = std::min(from.rows, (task + 1) * kRowsOfTask);
    for (std::int64_t r = task * kRowsOfTask; r < end; ++r) {
      widen_row(from, r, row.data());
      std::uint8_t* data = made->data.data() + r * row_bytes;
      if (to == WeightFormat::i8) {
        bytes_of_row(row.data(), from.columns, data, made->row_scales[static_cast<std::size_t>(r)]);
        continue;
      }
      for (std::int64_t b = 0; b < blocks; ++b) {
        half_bytes_of_block(row.data() + b * kWeightBlock, data + b * kWeightBlock / 2,
                            made->block_scales[static_cast<std::size_t>(r * blocks + b)]);
      }
    }
  });
  WeightMatrix matrix{.format = to, .rows = from.rows, .columns = from.columns, .data = made->data.data()};
  if (to == WeightFormat::i8) matrix.row_scales = made->row_scales.data();
  if (to == WeightFormat::i4) matrix.block_scales = made->block_scales.data();
  return std::make_shared<StoredMatrix>(StoredMatrix{.matrix = matrix, .owner = std::move(made)});
}

}  // namespace rootdk
