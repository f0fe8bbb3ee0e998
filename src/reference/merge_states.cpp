#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/view_check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/attention.h"

namespace rootdk {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void check(const ConstTensorView& out, const ConstTensorView& lse, const TensorView& merged_out,
           const TensorView& merged_lse) {
  using reference::require_operand;
  using reference::require_result;
  require_operand({"merge_states", "out", out}, 5);
  require_operand({"merge_states", "lse", lse}, {out.size(0), out.size(1), out.size(2), out.size(3)});
  require_result({"merge_states", "merged_out", merged_out}, {out.size(1), out.size(2), out.size(3), out.size(4)});
  if (merged_lse.defined()) {
    require_result({"merge_states", "merged_lse", merged_lse}, {out.size(1), out.size(2), out.size(3)});
  }
}

}  // namespace

void merge_states(ConstTensorView out, ConstTensorView lse, TensorView merged_out, TensorView merged_lse) {
  check(out, lse, merged_out, merged_lse);
  const reference::Doubles<5> part_out(out);
  const reference::Doubles<4> part_lse(lse);
  const reference::Rounded<4> result(merged_out);
  const reference::Rounded<3> result_lse(merged_lse);
  const std::int64_t parts = out.size(0), batch = out.size(1), heads = out.size(2), q_len = out.size(3);

  // merged = sum of exp(lse_part - lse) out_part, with exp(lse) the sum of exp(lse_part)
  auto merge_row = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    double top = kMinusInfinity, sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const double x = part_lse(part, b, h, i);
      if (std::isnan(x) || x > top) top = x;
      if (std::isnan(x)) break;
    }
    if (result_lse) result_lse(b, h, i) = top;
    if (top == kMinusInfinity) return;
    for (std::int64_t part = 0; part < parts; ++part) sum += std::exp(part_lse(part, b, h, i) - top);
    if (result_lse) result_lse(b, h, i) = top + std::log(sum);
    for (std::int64_t part = 0; part < parts; ++part) {
      if (part_lse(part, b, h, i) == kMinusInfinity) continue;
      const double share = std::exp(part_lse(part, b, h, i) - top) / sum;
      for (std::int64_t d = 0; d < out.size(4); ++d) result(b, h, i, d) += share * part_out(part, b, h, i, d);
    }
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < q_len; ++i) merge_row(b, h, i);
    }
  }
  result.round();
  result_lse.round();
}

}  // namespace rootdk
