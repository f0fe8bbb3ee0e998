#pragma once

// Matrix products in f32, the only place that calls the tuned library (docs/decisions/0010-matrix-products.md). The
// result is computed in tiles whose borders depend on the shape alone, each by one thread: bit-identical for any number
// of threads.

#include <cstdint>

#include "layers/tape.h"

namespace rootdk {

enum class Transpose : std::int32_t { no = 0, yes = 1 };

// A row-major matrix of somebody else's memory, as a product reads it.
struct Factor {
  const float* data = nullptr;
  std::int64_t stride = 0;  // from one stored row to the next
  Transpose transpose = Transpose::no;
};

// c [rows, columns] = a [rows, inner] b [inner, columns], or c += where `accumulate`. Factors are seen after their
// transposition.
struct ProductShape {
  std::int64_t rows = 0, columns = 0, inner = 0;
};
void multiply(const Context& context, const ProductShape& shape, Factor a, Factor b, float* c, bool accumulate = false);

}  // namespace rootdk
