// The next token from its logits.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "models/generate.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

// Token ids from the largest logit to the smallest, of equal ones the lowest id first. Few tokens make up most of a
// softmax: only as many are put in order as are asked for.
class TokenOrder {
 public:
  explicit TokenOrder(std::span<const float> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  std::size_t size() const { return ids_.size(); }
  // Only the first `count`.
  void keep(std::size_t count) {
    if (count >= ids_.size()) return;
    sort_until(count);
    ids_.resize(count);
  }
  // The tokens in any order, which is the same for the same logits.
  std::int32_t any(std::size_t i) const { return ids_[i]; }
  std::int32_t operator[](std::size_t rank) {
    constexpr std::size_t kAtFirst = 64, kGrowth = 8;
    if (rank >= sorted_) sort_until(std::max(kAtFirst, kGrowth * sorted_));
    return ids_[rank];
  }

 private:
  void sort_until(std::size_t count) {
    const auto before = [this](std::int32_t a, std::int32_t b) {
      const float x = logits_[static_cast<std::size_t>(a)], y = logits_[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    };
    const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    sorted_ = std::min(count, ids_.size());
    const auto end = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (end != ids_.end()) std::nth_element(begin, end, ids_.end(), before);
    std::sort(begin, end, before);
  }

  std::span<const float> logits_;
  std::vector<std::int32_t> ids_;
  std::size_t sorted_ = 0;
};

}  // namespace

std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step) {
  require(!logits.empty(), "sample: no logits");
  // -inf is a token that cannot come; with NaN or +inf there is no softmax.
  const auto bad = std::ranges::find_if(
      logits, [](float x) { return std::isnan(x) || x == std::numeric_limits<float>::infinity(); });
  if (bad != logits.end()) {
    fail("generate: the logit of token ", bad - logits.begin(), " is ", *bad, " at new token ", step,
         "; the weights hold NaN or numbers too large for f32");
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  // Where no token can come there is no softmax either.
  if (params.greedy || *largest == -std::numeric_limits<float>::infinity()) {
    return static_cast<std::int32_t>(largest - logits.begin());
  }
  TokenOrder order(logits);
  if (params.top_k > 0) order.keep(static_cast<std::size_t>(params.top_k));
  auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - *largest) / params.temperature);
  };
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) sum += weight(order.any(i));
  double kept = sum;
  std::size_t count = order.size();
  if (params.top_p < 1) {
    kept = 0;
    for (count = 0; count < order.size() && (count == 0 || kept < params.top_p * sum);) kept += weight(order[count++]);
  }
  const PhiloxWords words =
      philox4x32_10({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), 0u, 2u}, params.seed);
  double rest = kept * (words[0] * 0x1p-32 + words[1] * 0x1p-64);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    rest -= weight(order[i]);
    if (rest < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace rootdk
