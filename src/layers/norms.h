#pragma once

#include "layers/tape.h"

namespace rootdk {

enum class NormKind : std::int32_t {
  layer = 0,            // (x - mean) / sqrt(variance + eps) w + b
  rms = 1,              // x / sqrt(mean of x^2 + eps) w
  rms_unit_offset = 2,  // the same with 1 + w: Gemma
};

struct NormParams {
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
};

// Normalises runs of weight-many elements: rows of a matrix, or the heads of each row where weight is one head long.
// bias may be null; only NormKind::layer takes one.
Value norm(Context& context, const Value& x, const Value& weight, const Value& bias, const NormParams& params);

// Weight and bias, as modules hold them.
struct Norm {
  NormParams params;
  Value weight, bias;

  Norm() = default;
  Norm(std::int64_t width, const NormParams& norm_params, bool with_bias);
  explicit operator bool() const { return weight != nullptr; }
  Value operator()(Context& context, const Value& x) const { return norm(context, x, weight, bias, params); }
  void collect(Parameters& into, const std::string& name) const;
};

}  // namespace rootdk
