// Matrix products where oneDNN is not (WebAssembly): panels of 8 columns, 6 rows at a time in registers, each sum in
// the order of `inner`. One thread.

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "layers/products.h"

namespace rootdk {
namespace {

using Four = float __attribute__((vector_size(16)));
constexpr int kRows = 6;
constexpr std::int64_t kColumns = 8;

Four load(const float* p) {
  Four x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

struct Left {
  const float* data;
  std::int64_t row_stride, depth_stride;
};

// c [Rows, 8] = a [Rows, depth] panel [depth, 8]
template <int Rows>
void multiply_panel(Left a, const float* panel, std::int64_t depth, float* c) {
  Four low[Rows] = {}, high[Rows] = {};
  for (std::int64_t i = 0; i < depth; ++i) {
    const Four first = load(panel + i * kColumns), second = load(panel + i * kColumns + 4);
    for (int r = 0; r < Rows; ++r) {
      const float x = a.data[r * a.row_stride + i * a.depth_stride];
      low[r] += first * x;
      high[r] += second * x;
    }
  }
  for (int r = 0; r < Rows; ++r) {
    __builtin_memcpy(c + r * kColumns, &low[r], sizeof low[r]);
    __builtin_memcpy(c + r * kColumns + 4, &high[r], sizeof high[r]);
  }
}

using PanelProduct = void (*)(Left, const float*, std::int64_t, float*);
constexpr PanelProduct kProducts[kRows] = {multiply_panel<1>, multiply_panel<2>, multiply_panel<3>,
                                           multiply_panel<4>, multiply_panel<5>, multiply_panel<6>};

// panel [inner, 8]: columns from `column` on, zeros behind the last.
void pack(const Factor& b, const ProductShape& shape, std::int64_t column, float* panel) {
  const std::int64_t columns = std::min(kColumns, shape.columns - column);
  if (columns < kColumns) std::fill(panel, panel + shape.inner * kColumns, 0.0f);
  if (b.transpose == Transpose::no) {
    for (std::int64_t i = 0; i < shape.inner; ++i)
      std::copy_n(b.data + i * b.stride + column, columns, panel + i * kColumns);
    return;
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    const float* from = b.data + (column + j) * b.stride;
    for (std::int64_t i = 0; i < shape.inner; ++i) panel[i * kColumns + j] = from[i];
  }
}

}  // namespace

void multiply(const Context& context, const ProductShape& shape, Factor a, Factor b, float* c, bool accumulate) {
  const double start = context.times ? layer_clock(*context.times) : 0.0;
  const Left left{a.data, a.transpose == Transpose::yes ? 1 : a.stride, a.transpose == Transpose::yes ? a.stride : 1};
  std::vector<float> panel(static_cast<std::size_t>(shape.inner * kColumns));
  float tile[kRows * kColumns];
  for (std::int64_t column = 0; column < shape.columns; column += kColumns) {
    pack(b, shape, column, panel.data());
    const std::int64_t columns = std::min(kColumns, shape.columns - column);
    for (std::int64_t row = 0; row < shape.rows; row += kRows) {
      const std::int64_t rows = std::min<std::int64_t>(kRows, shape.rows - row);
      kProducts[rows - 1]({left.data + row * left.row_stride, left.row_stride, left.depth_stride}, panel.data(),
                          shape.inner, tile);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* out = c + (row + r) * shape.columns + column;
        for (std::int64_t j = 0; j < columns; ++j) out[j] = (accumulate ? out[j] : 0.0f) + tile[r * kColumns + j];
      }
    }
  }
  if (context.times) {
    context.times->product_seconds += layer_clock(*context.times) - start;
    context.times->product_flops +=
        2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * static_cast<double>(shape.inner);
  }
}

}  // namespace rootdk
