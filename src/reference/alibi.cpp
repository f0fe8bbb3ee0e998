#include <bit>
#include <cmath>

#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {

// For n a power of two the slopes are 2^(-8/n), 2^(-16/n), ... Other numbers of heads take those of the power of two
// below, then every second one of the power of two above.
void alibi_slopes(TensorView out) {
  constexpr std::string_view kName = "alibi_slopes";
  reference::require_result({kName, "out", out}, 1);
  require_dtype({kName, "out", out}, {DType::f32, DType::f64});
  const std::int64_t heads = out.size(0);
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const reference::Rounded<1> result(out);
  for (std::int64_t h = 0; h < heads; ++h) {
    const double step = h < below ? 8.0 / static_cast<double>(below) : 4.0 / static_cast<double>(below);
    const std::int64_t power = h < below ? h + 1 : 2 * (h - below) + 1;
    result(h) = std::exp2(-step * static_cast<double>(power));
  }
  result.round();
}

}  // namespace rootdk
