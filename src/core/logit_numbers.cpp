#include "core/logit_numbers.h"

#include <cmath>
#include <limits>

#include "core/check.h"

namespace rootdk {
namespace {

// Leaves room for log2(e), and for scores and products of some size.
constexpr double kLargestInF32 = 1e30;

}  // namespace

double checked_logit_scale(std::string_view operation, const LogitNumbers& numbers, std::int64_t head_dim, DType q) {
  const auto& [scale, temperature, softcap] = numbers;
  const double factor = scale.factor(head_dim), quotient = factor / temperature;
  require(std::isfinite(factor), operation, ": scale ", factor, " is not finite");
  require(std::isfinite(temperature) && temperature > 0, operation, ": temperature ", temperature,
          " must be positive and finite");
  require(std::isfinite(softcap) && softcap >= 0, operation, ": softcap ", softcap,
          " must be finite and not negative (0: none)");
  const double largest = q == DType::f64 ? std::numeric_limits<double>::max() : kLargestInF32;
  require(std::abs(quotient) <= largest, operation, ": scale ", factor, " / temperature ", temperature, " is ",
          quotient, ", over the limit ", largest, " where q is ", name_of(q));
  require(softcap <= largest, operation, ": softcap ", softcap, " is over the limit ", largest, " where q is ",
          name_of(q), " (0: none)");
  require(softcap == 0 || std::abs(quotient) / softcap <= largest, operation, ": scale / temperature ", quotient,
          " over softcap ", softcap, " is over the limit ", largest, " where q is ", name_of(q));
  return quotient;
}

}  // namespace rootdk
