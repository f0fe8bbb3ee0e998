#include "conformance/special_values.h"

#include <limits>

namespace rootdk::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Element (0, h, row, d) of a case's tensor that is still in f64, whatever its layout.
double& at(DataTensor& tensor, std::int64_t h, std::int64_t row, std::int64_t d) {
  const TensorView view = tensor.view();
  return view.as<double>()[h * view.stride(1) + row * view.stride(2) + d];
}

void scale_row(DataTensor& tensor, std::int64_t row, double factor) {
  for (std::int64_t h = 0; h < tensor.view().size(1); ++h) {
    for (std::int64_t d = 0; d < tensor.view().size(3); ++d) at(tensor, h, row, d) *= factor;
  }
}

void set_row(DataTensor& tensor, std::int64_t row, double value) {
  for (std::int64_t h = 0; h < tensor.view().size(1); ++h) {
    for (std::int64_t d = 0; d < tensor.view().size(3); ++d) at(tensor, h, row, d) = value;
  }
}

}  // namespace

void plant_outliers(AttentionCase& c) {
  scale_row(c.k, 0, 20);
  scale_row(c.v, 3, 50);
  for (std::int64_t row = 0; row < c.q.view().size(2); ++row) at(c.q, 0, row, 1) = 12;
}

void plant_denormals(AttentionCase& c) {
  for (DataTensor* tensor : {&c.q, &c.k, &c.v}) {
    for (std::int64_t row = 0; row < tensor->view().size(2); row += 2) scale_row(*tensor, row, 1e-39);
  }
}

void plant_zero_vectors(AttentionCase& c) {
  set_row(c.q, 2, 0);
  set_row(c.k, 5, 0);
}

void plant_short_vectors(AttentionCase& c) {
  for (DataTensor* tensor : {&c.q, &c.k}) {
    for (std::int64_t row = 0; row < tensor->view().size(2); row += 2) scale_row(*tensor, row, 1e-24);
  }
}

void plant_nan_under_minus_infinity(AttentionCase& c) {
  const std::int64_t kv_len = c.bias.size(3);
  auto bias = c.bias.values<double>();
  for (std::size_t row = 0; row < bias.size(); row += static_cast<std::size_t>(kv_len)) bias[row + 7] = -kInfinity;
  set_row(c.v, 7, kNaN);
}

void plant_masked_nan(AttentionCase& c) {
  for (std::int64_t i = 0; i < c.mask.size(2); ++i)
    c.mask.values<bool>()[static_cast<std::size_t>(i * c.mask.size(3) + 7)] = false;
  set_row(c.k, 7, kNaN);
  set_row(c.v, 7, kNaN);
}

void plant_padding(AttentionCase& c) {
  const std::int64_t last = c.k.view().size(2) - 1;
  set_row(c.k, last, kNaN);
  set_row(c.v, last, kInfinity);
  set_row(c.k, last - 1, kInfinity);
  set_row(c.v, last - 1, kNaN);
}

void plant_query_nan(AttentionCase& c) { at(c.q, 1, 4, 0) = kNaN; }

void plant_last_key_nan(AttentionCase& c) {
  const std::int64_t last = c.k.view().size(2) - 1;
  at(c.k, 0, last, 0) = kNaN;
  at(c.v, 1, last, 0) = kNaN;
}

void plant_minus_infinity(AttentionCase& c) {
  const std::int64_t q_len = c.bias.size(2), kv_len = c.bias.size(3);
  auto bias = c.bias.values<double>();
  for (std::int64_t h = 0; h < c.bias.size(1); ++h) {
    for (std::int64_t i = 0; i < q_len; ++i) {
      for (std::int64_t j = 0; j < kv_len; ++j) {
        if (i == 3 || (i + j) % 3 == 0) bias[static_cast<std::size_t>((h * q_len + i) * kv_len + j)] = -kInfinity;
      }
    }
  }
}

void drop_rows(AttentionCase& c) {
  const std::int64_t rows = c.mask.size(2), keys = c.mask.size(3);
  for (std::int64_t i : {std::int64_t{0}, rows / 2, rows - 1}) {
    for (std::int64_t j = 0; j < keys; ++j) c.mask.values<bool>()[static_cast<std::size_t>(i * keys + j)] = false;
  }
}

void plant_minus_infinite_sink(AttentionCase& c) { c.sinks.values<double>()[0] = -kInfinity; }

}  // namespace rootdk::test
