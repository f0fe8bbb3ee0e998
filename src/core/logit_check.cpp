#include "core/logit_check.h"

#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/view_check.h"

namespace rootdk {
namespace {

// Leaves room for log2(e), and for scores and products of some size.
constexpr double kLargestInF32 = 1e30;

}  // namespace

double checked_logit_scale(std::string_view operation, const LogitParams& params, std::int64_t head_dim, DType q) {
  const double temperature = params.temperature, softcap = params.softcap;
  const double factor = params.scale.factor(head_dim), quotient = factor / temperature;
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

void check_logit_tensors(const LogitCheck& check, const LogitParams& params, std::int64_t heads) {
  const auto require_readable = [&](const NamedView& tensor) {
    require_device(tensor, check.device, check.device_of);
    require_addressable(tensor);
  };
  if (params.relative_table.defined()) {
    const NamedView table{check.operation, "relative_table", params.relative_table};
    const std::int64_t entries = params.relative_table.rank == 2 ? params.relative_table.size(1) : 0;
    require_dtype(table, {check.dtype});
    require_broadcastable(table, {heads, entries});
    require_readable(table);
    require(params.relative_zero >= 0 && params.relative_zero < entries, check.operation, ": relative_zero ",
            params.relative_zero, " is not an entry of relative_table, which has ", entries);
  }
  for (const auto& [name, view] :
       {std::pair<std::string_view, const ConstTensorView&>{"alibi_slopes", params.alibi_slopes},
        {"sinks", params.sinks}}) {
    if (!view.defined()) continue;
    const NamedView vector{check.operation, name, view};
    require_dtype(vector, {check.dtype});
    require_shape(vector, {heads});
    require_readable(vector);
  }
}

}  // namespace rootdk
