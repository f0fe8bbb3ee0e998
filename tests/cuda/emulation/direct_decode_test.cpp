// Decode of one query over tensors, thread by thread on the host, against a computation in double. See README.md.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/emulation/block.h"
// Shared variables of a kernel are one for all fibers.
#define __shared__ static
#include "cuda/hopper/decode/direct_kernel.cuh"

namespace rootdk::test {
namespace {

using namespace cuda::hopper;

struct DirectCase {
  int kv_heads = 2, group = 4, keys = 300, head_dim = 64, value_dim = 64;
  int window_left = kNoLimit;
  int kv_length = 0;  // 0: all keys
  bool alibi = false;
  float spread = 1;  // of the queries: large ones make references follow

  int heads() const { return kv_heads * group; }
  int begin() const { return std::max(keys - 1 - window_left, 0); }
  int end() const { return kv_length ? kv_length : keys; }
};

// What a kernel or the computation in double gives.
struct Answer {
  std::vector<double> out;                      // [heads, value_dim]
  std::vector<double> lse, max_logit, entropy;  // [heads]
};

template <class Element>
class Emulated {
 public:
  using C = DirectConfig<Element>;

  explicit Emulated(const DirectCase& c) : case_(c), random_(static_cast<unsigned>(c.keys)) {
    q_ = normal(c.heads(), c.head_dim, c.spread);
    k_ = normal(c.kv_heads * c.keys, c.head_dim, 1);
    v_ = normal(c.kv_heads * c.keys, c.value_dim, 1);
    for (int head = 0; head < c.heads(); ++head) slopes_.push_back(0.01f * static_cast<float>(head + 1));
    hide();
  }

  Answer run() {
    const DirectCase& c = case_;
    std::vector<Element> out(static_cast<std::size_t>(c.heads() * c.value_dim));
    std::vector<float> lse(static_cast<std::size_t>(c.heads())), max_logit(lse), entropy(lse);
    ForwardParams p;
    p.q = {q_.data(), 0, c.head_dim, c.head_dim, 1};
    p.k = {k_.data(), 0, c.keys * c.head_dim, c.head_dim, 1};
    p.v = {v_.data(), 0, c.keys * c.value_dim, c.value_dim, 1};
    p.out = {out.data(), 0, c.value_dim, c.value_dim, 1};
    p.row_values[kLse] = {lse.data(), 0, 1, 1, 0};
    p.row_values[kMaxLogit] = {max_logit.data(), 0, 1, 1, 0};
    p.row_values[kEntropy] = {entropy.data(), 0, 1, 1, 0};
    p.sequences = 1;
    p.heads = c.heads();
    p.group = c.group;
    p.q_len = 1;
    p.kv_len = p.kv_rows = c.keys;
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    p.left = c.window_left;
    p.right = 0;
    p.scale_log2 = static_cast<float>(scale()) * kLog2e;
    if (c.kv_length) p.kv_lengths = {&case_.kv_length, 1};
    if (c.alibi) p.terms.alibi_slopes = {slopes_.data(), 1};
    p.split_tiles = (c.keys + kTensorTileKeys - 1) / kTensorTileKeys;
    for (int block = 0; block < c.kv_heads; ++block) {
      emulation::run_block(C::kThreads, block, [&] { direct_decode_kernel<C>(p); });
    }
    Answer answer;
    for (const Element x : out) answer.out.push_back(static_cast<float>(x));
    answer.lse.assign(lse.begin(), lse.end());
    answer.max_logit.assign(max_logit.begin(), max_logit.end());
    answer.entropy.assign(entropy.begin(), entropy.end());
    return answer;
  }

  Answer expected() const {
    Answer answer;
    for (int head = 0; head < case_.heads(); ++head) add_expected(head, answer);
    return answer;
  }

 private:
  double scale() const { return 1 / std::sqrt(case_.head_dim); }
  double slope(int head) const { return case_.alibi ? slopes_[static_cast<std::size_t>(head)] : 0; }
  std::size_t row(int head, int key) const { return static_cast<std::size_t>(head / case_.group * case_.keys + key); }

  std::vector<Element> normal(int rows, int columns, float spread) {
    std::vector<Element> values(static_cast<std::size_t>(rows * columns));
    for (Element& x : values) x = Element(spread * std::normal_distribution<float>()(random_));
    return values;
  }

  // What the query does not see is NaN.
  void hide() {
    const DirectCase& c = case_;
    for (int key = 0; key < c.keys; ++key) {
      if (key >= c.begin() && key < c.end()) continue;
      for (int head = 0; head < c.kv_heads; ++head) {
        const std::size_t at = row(head * c.group, key);
        std::fill_n(k_.begin() + static_cast<std::ptrdiff_t>(at) * c.head_dim, c.head_dim, Element(NAN));
        std::fill_n(v_.begin() + static_cast<std::ptrdiff_t>(at) * c.value_dim, c.value_dim, Element(NAN));
      }
    }
  }

  double logit(int head, int key) const {
    const DirectCase& c = case_;
    double score = 0;
    for (int d = 0; d < c.head_dim; ++d) {
      score +=
          static_cast<double>(static_cast<float>(q_[static_cast<std::size_t>(head * c.head_dim + d)])) *
          static_cast<float>(k_[row(head, key) * static_cast<std::size_t>(c.head_dim) + static_cast<std::size_t>(d)]);
    }
    return score * scale() - slope(head) * (c.keys - 1 - key);
  }

  void add_expected(int head, Answer& answer) const {
    const DirectCase& c = case_;
    std::vector<double> logits, out(static_cast<std::size_t>(c.value_dim));
    for (int key = c.begin(); key < c.end(); ++key) logits.push_back(logit(head, key));
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0, entropy = 0;
    for (const double x : logits) sum += std::exp(x - top);
    const double lse = top + std::log(sum);
    for (int key = c.begin(); key < c.end(); ++key) {
      const double x = logits[static_cast<std::size_t>(key - c.begin())], weight = std::exp(x - lse);
      entropy -= weight * (x - lse);
      for (std::size_t d = 0; d < out.size(); ++d) {
        out[d] += weight * static_cast<float>(v_[row(head, key) * out.size() + d]);
      }
    }
    answer.out.insert(answer.out.end(), out.begin(), out.end());
    answer.lse.push_back(lse);
    answer.max_logit.push_back(top);
    answer.entropy.push_back(entropy);
  }

  const DirectCase case_;
  std::mt19937 random_;
  std::vector<Element> q_, k_, v_;
  std::vector<float> slopes_;
};

// In the norm, relative to the expected one, or to 1 where that is smaller: entropies may be 0.
double error_of(const std::vector<double>& actual, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = actual[i] - expected[i];
    difference += d * d;
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / std::max(size, 1.0));
}

template <class Element>
void check(const DirectCase& c) {
  Emulated<Element> kernel(c);
  const Answer answer = kernel.run(), expected = kernel.expected();
  ASSERT_EQ(answer.out.size(), expected.out.size());
  constexpr double kTolerance = std::is_same_v<Element, __half> ? 6e-4 : 4e-3;
  EXPECT_LE(error_of(answer.out, expected.out), kTolerance);
  EXPECT_LE(error_of(answer.lse, expected.lse), 1e-5);
  EXPECT_LE(error_of(answer.max_logit, expected.max_logit), 1e-5);
  EXPECT_LE(error_of(answer.entropy, expected.entropy), 1e-4);
}

TEST(EmulatedDirectDecode, GroupsOfHeads) {
  for (const int group : {1, 2, 4, 7, 8}) check<__nv_bfloat16>({.group = group});
}
TEST(EmulatedDirectDecode, UnevenSizes) {
  check<__half>({.group = 3, .keys = 1, .head_dim = 40, .value_dim = 24});
  check<__nv_bfloat16>({.group = 5, .keys = 205, .head_dim = 16, .value_dim = 56});
}
TEST(EmulatedDirectDecode, HiddenKeysMayBeNaN) {
  check<__half>({.keys = 700, .window_left = 333});
  check<__nv_bfloat16>({.keys = 700, .value_dim = 48, .kv_length = 401});
}
TEST(EmulatedDirectDecode, LargeLogitsAndAlibi) {
  check<__half>({.keys = 900, .spread = 20});
  check<__half>({.keys = 500, .alibi = true, .spread = 6});
}

}  // namespace
}  // namespace rootdk::test
