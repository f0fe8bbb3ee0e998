#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {
namespace {

using reference::Doubles;
using reference::Positions;
using reference::Rounded;

constexpr double kTwoPi = 2 * std::numbers::pi;

// What the parameters come to: one angular frequency a rotated pair, and the factor on cos and sin.
struct Rotation {
  std::vector<double> frequency;  // [rotary_dim / 2]
  double magnitude = 1.0;
};

void check(std::string_view operation, const RopeParams& p, std::int64_t head_dim) {
  require(p.rotary_dim >= 0 && p.rotary_dim <= head_dim, operation, ": rotary_dim ", p.rotary_dim,
          " is not in 0 to head_dim ", head_dim);
  const std::int64_t rotary = p.rotary_dim ? p.rotary_dim : head_dim;
  require(rotary % 2 == 0, operation, ": rotary_dim ", rotary, " is odd, but dimensions rotate in pairs");
  require(p.layout == RopeLayout::half_split || p.layout == RopeLayout::interleaved, operation, ": layout ",
          static_cast<int>(p.layout), " is none of half_split (0), interleaved (1)");
  require(std::isfinite(p.base) && p.base > 0, operation, ": base ", p.base, " must be positive and finite");
  require(p.scaling >= RopeScaling::none && p.scaling <= RopeScaling::llama3, operation, ": scaling ",
          static_cast<int>(p.scaling), " is none of none (0), linear (1), ntk (2), yarn (3), llama3 (4)");
  require(std::isfinite(p.factor) && p.factor > 0, operation, ": factor ", p.factor, " must be positive and finite");
  if (p.scaling == RopeScaling::yarn || p.scaling == RopeScaling::llama3) {
    require(p.original_max_position > 0, operation, ": original_max_position ", p.original_max_position,
            " must be positive for yarn and llama3");
  }
  if (p.scaling == RopeScaling::yarn) {
    require(std::isfinite(p.beta_fast) && std::isfinite(p.beta_slow) && p.beta_slow > 0 && p.beta_fast >= p.beta_slow,
            operation, ": beta_fast ", p.beta_fast, " and beta_slow ", p.beta_slow,
            " must be positive, the first not below the second");
    require(p.base != 1, operation, ": yarn needs a base other than 1");
    require(std::isfinite(p.attention_factor) && p.attention_factor >= 0, operation, ": attention_factor ",
            p.attention_factor, " must be finite and not negative (0: 0.1 ln(factor) + 1)");
  }
  if (p.scaling == RopeScaling::llama3) {
    require(std::isfinite(p.low_freq_factor) && std::isfinite(p.high_freq_factor) && p.low_freq_factor > 0 &&
                p.high_freq_factor > p.low_freq_factor,
            operation, ": low_freq_factor ", p.low_freq_factor, " must be positive and below high_freq_factor ",
            p.high_freq_factor);
  }
}

// YaRN: pairs that turn often over the original context keep their frequency, slow ones are divided by the factor, and
// a ramp over the pairs in between blends the two.
double yarn_frequency(double plain, double pair, double rotary, const RopeParams& p) {
  auto pair_with_turns = [&](double turns) {
    const auto context = static_cast<double>(p.original_max_position);
    return rotary * std::log(context / (turns * kTwoPi)) / (2 * std::log(p.base));
  };
  double low = pair_with_turns(p.beta_fast), high = pair_with_turns(p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary - 1);
  if (low == high) high += 0.001;
  const double slow = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return slow * plain / p.factor + (1 - slow) * plain;
}

// Llama 3: the same idea by wavelength: short waves keep their frequency, long ones are divided by the factor.
double llama3_frequency(double plain, const RopeParams& p) {
  const double waves = static_cast<double>(p.original_max_position) * plain / kTwoPi;  // over the original context
  const double keep = std::clamp((waves - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor), 0.0, 1.0);
  return (1 - keep) * plain / p.factor + keep * plain;
}

double frequency(std::int64_t pair, std::int64_t rotary_dim, const RopeParams& p) {
  const auto rotary = static_cast<double>(rotary_dim), index = static_cast<double>(pair);
  double base = p.base;
  if (p.scaling == RopeScaling::ntk && rotary_dim > 2) base *= std::pow(p.factor, rotary / (rotary - 2));
  const double plain = std::pow(base, -2 * index / rotary);
  switch (p.scaling) {
    case RopeScaling::none:
    case RopeScaling::ntk: return plain;
    case RopeScaling::linear: return plain / p.factor;
    case RopeScaling::yarn: return yarn_frequency(plain, index, rotary, p);
    case RopeScaling::llama3: return llama3_frequency(plain, p);
  }
  return plain;
}

Rotation make_rotation(std::int64_t head_dim, const RopeParams& p) {
  const std::int64_t rotary = p.rotary_dim ? p.rotary_dim : head_dim;
  Rotation rotation;
  for (std::int64_t pair = 0; pair < rotary / 2; ++pair) rotation.frequency.push_back(frequency(pair, rotary, p));
  if (p.scaling == RopeScaling::yarn) {
    const double by_factor = p.factor > 1 ? 0.1 * std::log(p.factor) + 1 : 1.0;
    rotation.magnitude = p.attention_factor > 0 ? p.attention_factor : by_factor;
  }
  return rotation;
}

// direction 1 rotates, -1 applies the transpose, which turns back.
void rotate(std::string_view operation, const NamedView& input, const NamedView& output, const TensorView& target,
            const RopeParams& params, const ConstTensorView& positions, double direction) {
  reference::require_operand(input, 4);
  const ConstTensorView& x = input.view;
  reference::require_result(output, {x.size(0), x.size(1), x.size(2), x.size(3)});
  check(operation, params, x.size(3));
  const Positions position(operation, positions, params.offset, x.size(0), x.size(2));
  const Rotation rotation = make_rotation(x.size(3), params);
  const auto pairs = static_cast<std::int64_t>(rotation.frequency.size());
  const Doubles<4> from(x);
  const Rounded<4> to(target);

  auto rotate_row = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 2 * pairs; d < x.size(3); ++d) to(b, h, i, d) = from(b, h, i, d);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t first = params.layout == RopeLayout::half_split ? pair : 2 * pair;
      const std::int64_t second = params.layout == RopeLayout::half_split ? pair + pairs : 2 * pair + 1;
      const double angle = static_cast<double>(position(b, i)) * rotation.frequency[static_cast<std::size_t>(pair)];
      const double cosine = rotation.magnitude * std::cos(angle);
      const double sine = rotation.magnitude * std::sin(angle) * direction;
      to(b, h, i, first) = from(b, h, i, first) * cosine - from(b, h, i, second) * sine;
      to(b, h, i, second) = from(b, h, i, second) * cosine + from(b, h, i, first) * sine;
    }
  };
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t h = 0; h < x.size(1); ++h) {
      for (std::int64_t i = 0; i < x.size(2); ++i) rotate_row(b, h, i);
    }
  }
  to.round();
}

}  // namespace

void rope(ConstTensorView x, TensorView out, const RopeParams& params, ConstTensorView positions) {
  rotate("rope", {"rope", "x", x}, {"rope", "out", out}, out, params, positions, 1);
}

void rope_backward(ConstTensorView grad_out, TensorView grad_x, const RopeParams& params, ConstTensorView positions) {
  constexpr std::string_view kName = "rope_backward";
  rotate(kName, {kName, "grad_out", grad_out}, {kName, "grad_x", grad_x}, grad_x, params, positions, -1);
}

double rope_frequencies(TensorView out, std::int64_t head_dim, const RopeParams& params) {
  constexpr std::string_view kName = "rope_frequencies";
  require(head_dim >= 1, kName, ": head_dim ", head_dim, " must be at least 1");
  check(kName, params, head_dim);
  const Rotation rotation = make_rotation(head_dim, params);
  require_dtype({kName, "out", out}, {DType::f32, DType::f64});
  reference::require_result({kName, "out", out}, {static_cast<std::int64_t>(rotation.frequency.size())});
  const Rounded<1> result(out);
  for (std::size_t pair = 0; pair < rotation.frequency.size(); ++pair) {
    result(static_cast<std::int64_t>(pair)) = rotation.frequency[pair];
  }
  result.round();
  return rotation.magnitude;
}

}  // namespace rootdk
