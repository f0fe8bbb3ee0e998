// A KV cache whose memory lies on the device: append and attend over pages, 16-bit, int8 and e4m3.

#include <gtest/gtest.h>

#include <random>

#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"
#include "cuda/kv_cache_twins.h"
#include "dispatch/kv_cache_world.h"
#include "rootdk/rootdk.h"

namespace rootdk::test {
namespace {

using HopperKvCache = HopperTest;

double tolerance_of(DType q) { return q == DType::bf16 ? 2e-2 : 3e-3; }

WorldConfig random_config(std::uint64_t seed) {
  std::mt19937_64 random(seed * 104729 + 7);
  const auto pick = [&](auto... choices) { return pick_one(random, {choices...}); };
  WorldConfig config{.seed = seed, .target = "sm90", .memory = &cuda_memory(), .rope = random() % 2 == 0};
  config.q_dtype = random() % 2 ? DType::bf16 : DType::f16;
  config.group = pick(1, 2, 4, 5, 8, 16, 20);
  KvCacheConfig& c = config.cache;
  const DType types[] = {config.q_dtype, DType::i8, DType::f8e4m3};
  c.dtype = types[seed % 3];
  config.tolerance = tolerance_of(config.q_dtype);
  c.kv_heads = pick(1, 2);
  c.head_dim = pick(32, 64, 80, 128, 256);
  c.value_dim = random() % 2 ? 0 : pick(16, 48, 64, 128);
  c.layers = pick(1, 1, 2);
  pick_room(c, random, seed / 3 % 3 == 0);
  return config;
}

// Forks, trims, evictions and mixed batches, each answer against one causal pass in double.
TEST_F(HopperKvCache, RandomSchedules) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const std::string wrong = check_schedule(random_config(seed), random_schedule(seed, 24));
    ASSERT_EQ(wrong, "");
  }
}

TEST_F(HopperKvCache, LongSequencesInPagesOfEverySize) {
  for (const DType q_dtype : {DType::bf16, DType::f16}) {
    for (const DType cache_dtype : {q_dtype, DType::i8, DType::f8e4m3}) {
      expect_pages_of_every_size("sm90", q_dtype, cache_dtype, tolerance_of(q_dtype));
    }
  }
}

TEST_F(HopperKvCache, TheSameBitsInAnyCall) {
  for (const DType cache_dtype : {DType::bf16, DType::i8, DType::f8e4m3}) {
    for (const double softcap : {0.0, 3.0}) {  // 3: some logits are small, others are not
      expect_same_bits_in_any_call("sm90", DType::bf16, cache_dtype, softcap);
    }
  }
}

TEST_F(HopperKvCache, RefusalsSayWhy) {
  Twins twins("sm90", DType::bf16, DType::bf16, 64);
  const KvStep step{.sequence = twins.device_one()};
  Placement call(&cuda_memory());
  Tensor q(DType::f16, {1, Twins::kHeads, 1, Twins::kDim}), out(DType::f16, {1, Twins::kHeads, 1, Twins::kDim});
  const ConstTensorView placed_q = call.input(q);
  const TensorView placed_out = call.output(out);
  const Explanation answer =
      explain_attend(twins.device(), placed_q, placed_out, {&step, 1}, {}, {}, {.target = "sm90"});
  EXPECT_EQ(answer.chosen, "");
  EXPECT_NE(answer.error.find("the cache is bf16, needs i8, f8e4m3 or the type of q, f16"), std::string::npos)
      << answer.error;
  Tensor q16(DType::bf16, {1, Twins::kHeads, 1, Twins::kDim});
  try {
    attend(twins.device(), call.input(q16), call.output(q16), {&step, 1}, {}, {}, {.target = "sm90"});
    FAIL() << "attend ran without its workspace";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("attend_workspace()"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace rootdk::test
