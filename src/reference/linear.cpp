// The specification of a product with stored weights: y = x W^T + b, each sum in double, rounded once.
// bf16 weights that ask for it (WeightMatrix::rounds_x) multiply x rounded to bf16.
//
// Integer weights multiply integers. A row of x is rounded first, in blocks of 32 columns: the largest magnitude m of a
// block becomes 127, x the integer nearest to x * (127 / m), halves to even, and the integers count m / 127. These
// three operations are in f32, so that any implementation gives the same integers. A block whose m is below 2^-100
// counts as zero, and one with a number that is not finite makes the outputs NaN.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/linear_call.h"
#include "reference/implementations.h"
#include "rootdk/dtype.h"

namespace rootdk::reference {
namespace {

constexpr float kLargestInteger = 127.0f;

void round_block(const float* x, std::int64_t count, double* rounded) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::fmax(largest, std::abs(x[i]));
  }
  const float factor = kLargestInteger / largest, step = largest / kLargestInteger;
  for (std::int64_t i = 0; i < count; ++i) {
    rounded[i] = double{step} * std::nearbyint(x[i] * factor);
    if (largest < std::ldexp(1.0, -100)) rounded[i] = 0;
    if (!finite) rounded[i] = std::numeric_limits<double>::quiet_NaN();
  }
}

// What the weights multiply: a row of x, rounded where they are integers.
std::vector<double> activations(const LinearCall& call, const WeightMatrix& weight, std::int64_t row) {
  const std::int64_t columns = weight.columns;
  const float* x = call.x + row * columns;
  std::vector<double> numbers(x, x + columns);
  if (weight.rounds_x) {
    for (double& number : numbers) number = static_cast<float>(BFloat16(static_cast<float>(number)));
  }
  if (!is_integer(weight.format)) return numbers;
  for (std::int64_t k = 0; k < columns; k += kWeightBlock) {
    round_block(x + k, std::min(kWeightBlock, columns - k), numbers.data() + k);
  }
  return numbers;
}

void run(const LinearCall& call) {
  for (const LinearProduct& product : call.products) {
    const WeightMatrix& w = product.weight;
    for (std::int64_t r = 0; r < call.rows; ++r) {
      const std::vector<double> x = activations(call, w, r);
      for (std::int64_t o = 0; o < w.rows; ++o) {
        double sum = product.bias ? product.bias[o] : 0.0;
        for (std::int64_t i = 0; i < w.columns; ++i) sum += x[static_cast<std::size_t>(i)] * weight_at(w, o, i);
        product.y[r * w.rows + o] = static_cast<float>(sum);
      }
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
    case WeightFormat::i8: {
      const IntegerAt at = integer_at(w.format, w.columns, row, column);
      return double{w.row_scales[row]} * static_cast<const std::int8_t*>(w.data)[at.byte];
    }
    case WeightFormat::i4: {
      const IntegerAt at = integer_at(w.format, w.columns, row, column);
      const int integer = (static_cast<const std::uint8_t*>(w.data)[at.byte] >> at.shift & 15) - 8;
      return double{static_cast<float>(std::bit_cast<BFloat16>(w.block_scales[at.scale]))} * integer;
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
