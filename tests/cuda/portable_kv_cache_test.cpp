// A KV cache whose memory lies on the device, attended to by the portable path: every type of query over every type of
// cache.

#include <gtest/gtest.h>

#include <random>

#include "cuda/cuda_memory.h"
#include "cuda/kv_cache_twins.h"
#include "dispatch/kv_cache_world.h"
#include "rootdk/rootdk.h"

namespace rootdk::test {
namespace {

class PortableKvCache : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

constexpr DType kQueryTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kCacheTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3};

// Everything is computed in f32, so that the output is rounded once.
double tolerance_of(DType q) { return q == DType::f32 ? 2e-5 : q == DType::bf16 ? 4e-3 : 6e-4; }

WorldConfig random_config(std::uint64_t seed) {
  std::mt19937_64 random(seed * 15485863 + 3);
  const auto pick = [&](auto... choices) { return pick_one(random, {choices...}); };
  WorldConfig config{.seed = seed, .target = "sm80", .memory = &cuda_memory(), .rope = random() % 2 == 0};
  config.q_dtype = kQueryTypes[random() % std::size(kQueryTypes)];
  config.tolerance = tolerance_of(config.q_dtype);
  config.group = pick(1, 2, 4, 5, 16, 21);
  KvCacheConfig& c = config.cache;
  c.dtype = kCacheTypes[seed % std::size(kCacheTypes)];
  c.kv_heads = pick(1, 2, 3);
  c.head_dim = pick(2, 18, 64, 80, 128, 256, 300);
  c.value_dim = random() % 2 ? 0 : pick(1, 7, 64, 130, 500);
  if (config.rope && c.head_dim > 256) c.head_dim = 256;
  c.layers = pick(1, 1, 2);
  pick_room(c, random, seed / 4 % 3 == 0);
  return config;
}

// Forks, trims, evictions and mixed batches, each answer against one causal pass in double.
TEST_F(PortableKvCache, RandomSchedules) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    ASSERT_EQ(check_schedule(random_config(seed), random_schedule(seed, 24)), "");
  }
}

TEST_F(PortableKvCache, LongSequencesInPagesOfEverySize) {
  for (const DType q_dtype : kQueryTypes) {
    for (const DType cache_dtype : kCacheTypes) {
      expect_pages_of_every_size("sm80", q_dtype, cache_dtype, tolerance_of(q_dtype));
    }
  }
}

TEST_F(PortableKvCache, TheSameBitsInAnyCall) {
  for (const DType cache_dtype : kCacheTypes) expect_same_bits_in_any_call("sm80", DType::f32, cache_dtype);
}

}  // namespace
}  // namespace rootdk::test
