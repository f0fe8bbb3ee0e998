#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding scale_by_head_dim(const Bench& bench) {
  Random random(bench.seed, 17);
  const std::int64_t count = bench.samples(40000);
  struct {
    const char* name;
    std::int64_t d_model, heads;
  } const models[] = {{"original Transformer", 512, 8}, {"BERT-base", 768, 12}, {"GPT-3", 12288, 96}};
  Finding finding{.quantity = "logit variance when sqrt(d_model) is used, GPT-3", .samples = count};
  bool all = true;
  for (const auto& model : models) {
    const std::int64_t head_dim = model.d_model / model.heads;
    const double wrong = 1 / std::sqrt(static_cast<double>(model.d_model));
    const Interval right_variance = variance_interval(sample_logits(bench, random, count, head_dim, {}));
    const Interval wrong_variance =
        variance_interval(sample_logits(bench, random, count, head_dim, {.logits = {.scale = wrong}}));
    const double expected = static_cast<double>(head_dim) / static_cast<double>(model.d_model);
    finding.details.push_back({std::string(model.name) + ": variance with sqrt(d_k)", 1, right_variance});
    finding.details.push_back({std::string(model.name) + ": variance with sqrt(d_model)", expected, wrong_variance});
    finding.expected = expected;
    finding.measured = wrong_variance;
    all &= std::abs(right_variance.value - 1) < 0.06 && std::abs(wrong_variance.value / expected - 1) < 0.06;
  }
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note = all ? "A head sums d_k products, not d_model: with sqrt(d_model) the logits have variance d_k / "
                       "d_model = 1 / heads "
                       "and the more heads, the flatter the softmax."
                     : "The variances are not 1 and d_k / d_model.";
  return finding;
}

}  // namespace rootdk::lab
