#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "layers/linear.h"

namespace rootdk::lab {

Finding output_projection_mixes(const Bench& bench) {
  Random random(bench.seed, 23);
  constexpr std::int64_t kHeads = 4, kHeadDim = 16, kTokens = 32, kModel = kHeads * kHeadDim;
  const Tensor q = random.normal_tensor({1, kHeads, kTokens, kHeadDim}),
               k = random.normal_tensor({1, kHeads, kTokens, kHeadDim});
  Tensor v = random.normal_tensor({1, kHeads, kTokens, kHeadDim});
  // Heads side by side in a row [kTokens, kModel], as W_O reads them.
  auto concatenated = [&] {
    Value rows = make_value({kTokens, kModel});
    const TensorView out = TensorView(rows->data(), {1, kTokens, kHeads, kHeadDim}).transposed(1, 2);
    bench.attend(q, k, v, out, {}, {});
    return rows;
  };
  Linear mix(kModel, kModel, false);
  for (float& w : mix.weight->value().values<float>())
    w = static_cast<float>(random.normal() / std::sqrt(double{kModel}));
  Context context{};
  const Value before = concatenated(), mixed_before = mix(context, before);
  // Another value in head 0 alone.
  for (float& value : v.values<float>().subspan(0, kTokens * kHeadDim)) value += 1;
  const Value after = concatenated(), mixed_after = mix(context, after);

  auto columns_moved = [&](const Value& a, const Value& b) {
    std::int64_t moved = 0;
    for (std::int64_t c = 0; c < kModel; ++c) {
      double change = 0;
      for (std::int64_t i = 0; i < kTokens; ++i)
        change = std::max(change, std::abs(double{a->data()[i * kModel + c]} - b->data()[i * kModel + c]));
      moved += change > 1e-4;
    }
    return static_cast<double>(moved) / kModel;
  };
  Finding finding{
      .quantity = "share of the output that head 0 reaches without W_O", .expected = 1.0 / kHeads, .samples = kTokens};
  finding.measured = exact(columns_moved(before, after));
  finding.details = {{"without W_O", 1.0 / kHeads, finding.measured},
                     {"with W_O", 1, exact(columns_moved(mixed_before, mixed_after))}};
  const bool holds = finding.measured.value == 1.0 / kHeads && finding.details[1].measured.value == 1;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds
          ? "Concatenation gives each head a slice of its own; only W_O lets what one head found reach all of d_model."
          : "A head reaches outside its slice before W_O, or not everywhere after it.";
  return finding;
}

}  // namespace rootdk::lab
