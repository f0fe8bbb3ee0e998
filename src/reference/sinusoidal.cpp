#include <cmath>

#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {

void sinusoidal_positions(TensorView out, const SinusoidalParams& params) {
  constexpr std::string_view kName = "sinusoidal_positions";
  reference::require_result({kName, "out", out}, 2);
  require(std::isfinite(params.base) && params.base > 0, kName, ": base ", params.base, " must be positive and finite");
  require(params.layout == SinusoidalLayout::interleaved || params.layout == SinusoidalLayout::concatenated, kName,
          ": layout ", static_cast<int>(params.layout), " is none of interleaved (0), concatenated (1)");
  const std::int64_t len = out.size(0), dim = out.size(1);
  const std::int64_t sines = (dim + 1) / 2;  // an odd dim has one sine more than cosines
  const reference::Rounded<2> result(out);
  for (std::int64_t row = 0; row < len; ++row) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const bool interleaved = params.layout == SinusoidalLayout::interleaved;
      const bool sine = interleaved ? d % 2 == 0 : d < sines;
      const std::int64_t pair = interleaved ? d / 2 : d % sines;
      const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(dim);
      const double angle = static_cast<double>(row + params.offset) / std::pow(params.base, exponent);
      result(row, d) = sine ? std::sin(angle) : std::cos(angle);
    }
  }
  result.round();
}

}  // namespace rootdk
