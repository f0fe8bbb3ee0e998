// The specification of a product with stored weights: y = x W^T + b, each sum in double, rounded once.

#include "core/linear_call.h"
#include "reference/implementations.h"
#include "rootdk/dtype.h"

namespace rootdk::reference {
namespace {

void run(const LinearCall& call) {
  const WeightMatrix& w = call.weight;
  for (std::int64_t r = 0; r < call.rows; ++r) {
    for (std::int64_t o = 0; o < w.rows; ++o) {
      double sum = call.bias ? call.bias[o] : 0.0;
      for (std::int64_t i = 0; i < w.columns; ++i) sum += call.x[r * w.columns + i] * weight_at(w, o, i);
      call.y[r * w.rows + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace

double weight_at(const WeightMatrix& w, std::int64_t row, std::int64_t column) {
  const std::int64_t index = row * w.columns + column;
  switch (w.format) {
    case WeightFormat::f32: return static_cast<const float*>(w.data)[index];
    case WeightFormat::bf16: return static_cast<float>(static_cast<const BFloat16*>(w.data)[index]);
    case WeightFormat::f16: return static_cast<float>(static_cast<const Float16*>(w.data)[index]);
    case WeightFormat::i8: return double{w.row_scales[row]} * static_cast<const std::int8_t*>(w.data)[index];
    case WeightFormat::i4: {
      const std::int64_t block = index / kWeightBlock, place = index % kWeightBlock, half = kWeightBlock / 2;
      const unsigned byte = static_cast<const std::uint8_t*>(w.data)[block * half + place % half];
      const int number = static_cast<int>(place < half ? byte & 15u : byte >> 4) - 8;
      return double{static_cast<float>(std::bit_cast<BFloat16>(w.block_scales[block]))} * number;
    }
  }
  return 0;
}

std::span<const LinearImplementation> linear_implementations() {
  static constexpr LinearImplementation kReference[] = {
      {.name = "reference", .answer = [](const LinearCall&) { return accept_unless<LinearCall>("", run); }}};
  return kReference;
}

}  // namespace rootdk::reference
