// Decoding token by token, in any batch, with forks, trims and evictions between, equals one causal pass over the whole
// sequence: thousands of random schedules, for every type, layout and implementation.

#include <gtest/gtest.h>

#include <random>

#include "dispatch/kv_cache_world.h"

namespace rootdk::test {
namespace {

// The implementations of attend that accept a plain call here.
std::vector<std::string> targets() {
  KvCache cache({.dtype = DType::bf16, .kv_heads = 1, .head_dim = 16, .pages = 1});
  const SequenceId s = cache.open();
  Tensor token(DType::bf16, {1, 1, 1, 16}), out(DType::bf16, {1, 1, 1, 16});
  const KvStep step{.sequence = s};
  append(cache, token, token, {&step, 1});
  std::vector<std::string> names;
  for (const auto& candidate : explain_attend(cache, token, out, {&step, 1}).candidates) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

// bf16 and f16 queries round their outputs, and their kernels may round weights, to that type.
double tolerance_of(DType q, DType cache) {
  if (q == DType::bf16) return 2e-2;
  if (q == DType::f16) return 3e-3;
  return cache == DType::i8 ? 5e-4 : 3e-5;  // integers are multiplied with queries of 15 bits
}

WorldConfig random_config(std::uint64_t seed, const std::string& target) {
  std::mt19937_64 random(seed * 7919 + 1);
  auto pick = [&](auto... choices) {
    const std::int64_t all[] = {choices...};
    return all[random() % std::size(all)];
  };
  static const DType kCache[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3};
  static const DType kQuery[] = {DType::f32, DType::f32, DType::bf16, DType::f16};
  WorldConfig config{.seed = seed, .target = target, .rope = random() % 2 == 0};
  KvCacheConfig& c = config.cache;
  c.dtype = kCache[seed % std::size(kCache)];
  config.q_dtype = kQuery[random() % 4];
  config.tolerance = tolerance_of(config.q_dtype, c.dtype);
  config.group = pick(1, 2, 3, 4, 5, 8);
  c.kv_heads = pick(1, 2);
  c.head_dim = pick(4, 8, 16, 20, 32, 36, 64);
  c.value_dim = random() % 2 ? 0 : pick(1, 8, 24, 40);
  c.layers = pick(1, 1, 2);
  if (seed / 4 % 2) {
    c.layout = KvLayout::contiguous;
    c.max_sequences = pick(2, 4, 6);
    c.max_len = pick(30, 77, 200);
  } else {
    c.page_size = pick(16, 16, 32, 48);
    c.pages = pick(4, 12, 40);
  }
  return config;
}

class KvCacheSchedules : public testing::TestWithParam<std::string> {};

TEST_P(KvCacheSchedules, EqualOneCausalPass) {
  // The reference is slow, and every other target is compared with it: it gets fewer schedules.
  const std::uint64_t schedules = GetParam() == "reference" ? 200 : 1000;
  for (std::uint64_t seed = 0; seed < schedules; ++seed) {
    const std::string wrong = check_schedule(random_config(seed, GetParam()), random_schedule(seed, 24));
    ASSERT_EQ(wrong, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KvCacheSchedules, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rootdk::test
