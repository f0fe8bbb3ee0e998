#include "layers/norms.h"

#include <cmath>

#include "core/check.h"
#include "layers/rows.h"

namespace rootdk {
namespace {

// Mean (0 for RMS) and 1 / deviation of each row.
struct RowMoments {
  std::vector<float> mean, inverse;
};

// Sums in double, eight at a time in a fixed order.
ROOTDK_VECTOR_CLONES double sum_of(const float* x, std::int64_t width) {
  double lanes[8] = {};
  std::int64_t d = 0;
  for (; d + 8 <= width; d += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += x[d + lane];
  }
  for (; d < width; ++d) lanes[0] += x[d];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

ROOTDK_VECTOR_CLONES double sum_of_squares(const float* x, double mean, std::int64_t width) {
  double lanes[8] = {};
  std::int64_t d = 0;
  for (; d + 8 <= width; d += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double centred = x[d + lane] - mean;
      lanes[lane] += centred * centred;
    }
  }
  for (; d < width; ++d) lanes[0] += (x[d] - mean) * (x[d] - mean);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

ROOTDK_VECTOR_CLONES void scale_row(const float* x, const float* weight, float* y, const float* mean_inverse_offset,
                                    std::int64_t width) {
  const float mean = mean_inverse_offset[0], inverse = mean_inverse_offset[1], offset = mean_inverse_offset[2];
  for (std::int64_t d = 0; d < width; ++d) y[d] = (x[d] - mean) * inverse * (weight[d] + offset);
}

// With n = (x - mean) inverse and g = grad_y (w + offset): grad_x = inverse (g - [mean g] - n mean(g n)); the bracket
// only where the mean was taken away.
void grad_of_row(const float* x, const float* grad_y, const Node& weight, const NormParams& params, float mean,
                 float inverse, float* grad_x) {
  const std::int64_t width = weight.value().elements();
  const float* w = weight.data();
  const float offset = params.kind == NormKind::rms_unit_offset ? 1.0f : 0.0f;
  double mean_g = 0, mean_gn = 0;
  for (std::int64_t d = 0; d < width; ++d) {
    const double g = static_cast<double>(grad_y[d]) * (w[d] + offset);
    mean_g += g;
    mean_gn += g * (x[d] - mean) * inverse;
  }
  mean_g = params.kind == NormKind::layer ? mean_g / static_cast<double>(width) : 0.0;
  mean_gn /= static_cast<double>(width);
  for (std::int64_t d = 0; d < width; ++d) {
    const double g = static_cast<double>(grad_y[d]) * (w[d] + offset);
    const double n = static_cast<double>(x[d] - mean) * inverse;
    grad_x[d] += static_cast<float>(inverse * (g - mean_g - n * mean_gn));
  }
}

void norm_backward(const Context& context, Node& x, Node& weight, Node* bias, Node& y, const RowMoments& moments,
                   const NormParams& params) {
  const std::int64_t width = weight.value().elements(), rows = x.value().elements() / width;
  const float* grad_y = y.grad_data();
  float* grad_x = x.grad_data();
  for_row_blocks(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto r = static_cast<std::size_t>(row);
      grad_of_row(x.data() + row * width, grad_y + row * width, weight, params, moments.mean[r], moments.inverse[r],
                  grad_x + row * width);
    }
  });
  sum_over_rows(context, rows, width, weight.grad_data(), [&](std::int64_t begin, std::int64_t end, float* sums) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float mean = moments.mean[static_cast<std::size_t>(row)];
      const float inverse = moments.inverse[static_cast<std::size_t>(row)];
      for (std::int64_t d = 0; d < width; ++d) {
        sums[d] += grad_y[row * width + d] * (x.data()[row * width + d] - mean) * inverse;
      }
    }
  });
  if (!bias) return;
  sum_over_rows(context, rows, width, bias->grad_data(), [&](std::int64_t begin, std::int64_t end, float* sums) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t d = 0; d < width; ++d) sums[d] += grad_y[row * width + d];
    }
  });
}

}  // namespace

Value norm(Context& context, const Value& x, const Value& weight, const Value& bias, const NormParams& params) {
  const std::int64_t width = weight->value().elements();
  require(width > 0 && x->width() % width == 0, "norm: rows of width ", x->width(), " for a weight of ", width);
  require(!bias || params.kind == NormKind::layer, "norm: only a layer norm takes a bias");
  const std::int64_t rows = x->value().elements() / width;
  Value y = make_unwritten_like(x);
  auto moments = std::make_shared<RowMoments>();
  moments->mean.resize(static_cast<std::size_t>(rows));
  moments->inverse.resize(static_cast<std::size_t>(rows));
  const float offset = params.kind == NormKind::rms_unit_offset ? 1.0f : 0.0f;
  for_row_blocks(context, rows, kFewRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* in = x->data() + row * width;
      float* out = y->data() + row * width;
      const double mean = params.kind == NormKind::layer ? sum_of(in, width) / static_cast<double>(width) : 0.0;
      const double variance = sum_of_squares(in, mean, width) / static_cast<double>(width);
      const float scaling[] = {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(variance + params.eps)),
                               offset};
      moments->mean[static_cast<std::size_t>(row)] = scaling[0];
      moments->inverse[static_cast<std::size_t>(row)] = scaling[1];
      scale_row(in, weight->data(), out, scaling, width);
      if (!bias) continue;
      for (std::int64_t d = 0; d < width; ++d) out[d] += bias->data()[d];
    }
  });
  if (context.tape) {
    context.tape->record([&context, x, weight, bias, y, moments, params] {
      norm_backward(context, *x, *weight, bias.get(), *y, *moments, params);
    });
  }
  return y;
}

Norm::Norm(std::int64_t width, const NormParams& norm_params, bool with_bias)
    : params(norm_params), weight(make_value({width})), bias(with_bias ? make_value({width}) : nullptr) {
  const float identity = params.kind == NormKind::rms_unit_offset ? 0.0f : 1.0f;
  for (float& w : weight->value().values<float>()) w = identity;
}

void Norm::collect(Parameters& into, const std::string& name) const {
  if (!weight) return;
  into.push_back({name + ".weight", weight});
  if (bias) into.push_back({name + ".bias", bias});
}

}  // namespace rootdk
