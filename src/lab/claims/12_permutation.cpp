#include <algorithm>
#include <cmath>
#include <numeric>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "rootdk/positions.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kTokens = 96, kHeadDim = 32;

Tensor permuted(const Tensor& x, const std::vector<std::size_t>& order) {
  Tensor result(DType::f32, x.shape());
  const std::size_t d = kHeadDim;
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::copy_n(x.values<float>().begin() + static_cast<std::ptrdiff_t>(order[i] * d), d,
                result.values<float>().begin() + static_cast<std::ptrdiff_t>(i * d));
  }
  return result;
}

// Self-attention f(x), with RoPE on q and k where asked.
Tensor self_attention(const Bench& bench, const Tensor& x, bool causal, bool rotate) {
  Tensor q(DType::f32, x.shape()), out(DType::f32, x.shape());
  std::copy(x.values<float>().begin(), x.values<float>().end(), q.values<float>().begin());
  if (rotate) rope(q, q);
  bench.attend(q, q, x, out, {.causal = causal}, {});
  return out;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
    worst = std::max(worst, std::abs(double{a.values<float>()[i]} - b.values<float>()[i]));
  }
  return worst;
}

}  // namespace

Finding permutation_equivariance(const Bench& bench) {
  Random random(bench.seed, 12);
  const Tensor x = random.normal_tensor({1, 1, kTokens, kHeadDim});
  std::vector<std::size_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  // | f(P x) - P f(x) |
  auto violation = [&](bool causal, bool rotate) {
    return largest_difference(self_attention(bench, permuted(x, order), causal, rotate),
                              permuted(self_attention(bench, x, causal, rotate), order));
  };
  const double plain = violation(false, false), causal = violation(true, false), rotated = violation(false, true);
  // A kernel that forgot to read its input would be equivariant too.
  const double moved = largest_difference(self_attention(bench, x, false, false), x);
  Finding finding{.quantity = "largest |f(P x) - P f(x)|", .expected = 0, .samples = kTokens * kHeadDim};
  finding.measured = exact(plain);
  finding.details = {{"no mask, no positions", 0, exact(plain)},
                     {"with a causal mask", std::nan(""), exact(causal)},
                     {"with RoPE", std::nan(""), exact(rotated)}};
  const bool holds = plain < 1e-5 && causal > 0.1 && rotated > 0.1 && moved > 0.1;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note = holds ? "A sum over keys does not know their order; a causal mask or any positional encoding tells it."
                       : "Permuting the tokens does not just permute the outputs.";
  return finding;
}

}  // namespace rootdk::lab
