// A KV cache whose memory lies on the device: append and attend over pages, 16-bit and int8.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"
#include "dispatch/kv_cache_world.h"
#include "rootdk/rootdk.h"

namespace rootdk::test {
namespace {

using HopperKvCache = HopperTest;

// Weights of int8 values are rounded to bf16 whatever the type of the queries.
double tolerance_of(DType q, DType cache) { return q == DType::bf16 ? 2e-2 : cache == DType::i8 ? 6e-3 : 3e-3; }

WorldConfig random_config(std::uint64_t seed) {
  std::mt19937_64 random(seed * 104729 + 7);
  const auto pick = [&](auto... choices) {
    const std::int64_t all[] = {choices...};
    return all[random() % std::size(all)];
  };
  WorldConfig config{.seed = seed, .target = "sm90", .memory = &cuda_memory(), .rope = random() % 2 == 0};
  config.q_dtype = random() % 2 ? DType::bf16 : DType::f16;
  config.group = pick(1, 2, 4, 5, 8, 16);
  KvCacheConfig& c = config.cache;
  c.dtype = seed % 2 ? DType::i8 : config.q_dtype;
  config.tolerance = tolerance_of(config.q_dtype, c.dtype);
  c.kv_heads = pick(1, 2);
  c.head_dim = pick(32, 64, 80, 128, 256);
  c.value_dim = random() % 2 ? 0 : pick(16, 48, 64, 128);
  c.layers = pick(1, 1, 2);
  if (seed / 2 % 3 == 0) {
    c.layout = KvLayout::contiguous;
    c.max_sequences = pick(2, 4, 6);
    c.max_len = pick(30, 77, 200);
  } else {
    c.page_size = pick(16, 32, 48, 64, 128);
    c.pages = pick(4, 12, 40);
  }
  return config;
}

// Forks, trims, evictions and mixed batches, each answer against one causal pass in double.
TEST_F(HopperKvCache, RandomSchedules) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const std::string wrong = check_schedule(random_config(seed), random_schedule(seed, 24));
    ASSERT_EQ(wrong, "");
  }
}

// The same long sequence in a cache on the host and in one on the device.
class Twins {
 public:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 128, kLen = 1100;  // three chunks of keys

  Twins(DType q_dtype, DType cache_dtype, std::int64_t page_size)
      : q_dtype_(q_dtype),
        storage_(&cuda_memory()),
        host_(config(cache_dtype, page_size)),
        device_(placed(config(cache_dtype, page_size))),
        q_(random_tensor(q_dtype, {1, kHeads, kLen, kDim}, 3)) {
    const Tensor k = random_tensor(q_dtype, {1, kKvHeads, kLen, kDim}, 1);
    const Tensor v = random_tensor(q_dtype, {1, kKvHeads, kLen, kDim}, 2);
    host_one_ = host_.open();
    device_one_ = device_.open();
    append(host_, k, v, {{{.sequence = host_one_, .tokens = kLen}}});
    Placement call(&cuda_memory());
    append(device_, call.input(k), call.input(v), {{{.sequence = device_one_, .tokens = kLen}}});
    call.fetch();
  }

  KvCache& host() { return host_; }
  KvCache& device() { return device_; }
  SequenceId host_one() const { return host_one_; }
  SequenceId device_one() const { return device_one_; }

  // Rows of q of the given length from a position on, and those steps; on the device.
  Tensor attend_device(std::int64_t first, std::int64_t rows, std::span<const KvStep> steps,
                       const AttendParams& params = {}) {
    Placement call(&cuda_memory());
    Tensor out(q_dtype_, {1, kHeads, rows, kDim});
    poison(out);
    const ConstTensorView q = call.input(clone(q_.view().slice(2, first, first + rows)));
    const TensorView placed = call.output(out);
    Execution execution{.target = "sm90"};
    call.add_workspace(execution, attend_workspace(device_, q, placed, steps, params, {}, execution));
    attend(device_, q, placed, steps, params, {}, execution);
    call.fetch();
    return out;
  }
  Tensor attend_reference(std::int64_t first, std::int64_t rows, std::span<const KvStep> steps,
                          const AttendParams& params = {}) {
    const Tensor q = convert(clone(q_.view().slice(2, first, first + rows)), DType::f64);
    Tensor out(DType::f64, {1, kHeads, rows, kDim});
    attend(host_, q, out, steps, params, {}, {.target = "reference"});
    return out;
  }

 private:
  static KvCacheConfig config(DType dtype, std::int64_t page_size) {
    return {.dtype = dtype,
            .kv_heads = kKvHeads,
            .head_dim = kDim,
            .page_size = page_size,
            .pages = 2 * (kLen / page_size + 2)};
  }
  KvCacheConfig placed(KvCacheConfig c) {
    const auto place = [&](DType dtype, const Shape& shape) {
      const Tensor empty(dtype, shape);
      const ConstTensorView view = storage_.input(empty);
      return TensorView(const_cast<void*>(view.data), dtype, std::span(shape), view.device);
    };
    c.device = cuda_memory().device();
    c.storage.k = place(c.dtype, {1, c.pages, kKvHeads, c.page_size, kDim});
    c.storage.v = place(c.dtype, {1, c.pages, kKvHeads, c.page_size, kDim});
    if (c.dtype == DType::i8) {
      c.storage.k_scales = place(DType::f32, {1, c.pages, kKvHeads, c.page_size});
      c.storage.v_scales = place(DType::f32, {1, c.pages, kKvHeads, c.page_size});
    }
    return c;
  }

  DType q_dtype_;
  Placement storage_;
  KvCache host_, device_;
  Tensor q_;
  SequenceId host_one_ = SequenceId::none, device_one_ = SequenceId::none;
};

void expect_equal(const Tensor& expected, const Tensor& actual, double tolerance) {
  const Difference d = difference(expected, convert(actual, DType::f64));
  EXPECT_LE(d.relative(), tolerance);
}

TEST_F(HopperKvCache, LongSequencesInPagesOfEverySize) {
  for (const DType q_dtype : {DType::bf16, DType::f16}) {
    for (const DType cache_dtype : {q_dtype, DType::i8}) {
      for (const std::int64_t page_size : {16, 48, 64, 256}) {
        SCOPED_TRACE(std::string(name_of(q_dtype)) + " over " + std::string(name_of(cache_dtype)) + ", pages of " +
                     std::to_string(page_size));
        Twins twins(q_dtype, cache_dtype, page_size);
        const AttendParams windowed{.window_left = 700, .window_keeps_first = 4};
        for (const AttendParams& params : {AttendParams{}, windowed}) {
          for (const std::int64_t tokens : {1, 5}) {
            const std::int64_t first = Twins::kLen - tokens;
            const KvStep host{.sequence = twins.host_one(), .tokens = tokens};
            const KvStep device{.sequence = twins.device_one(), .tokens = tokens};
            expect_equal(twins.attend_reference(first, tokens, {&host, 1}, params),
                         twins.attend_device(first, tokens, {&device, 1}, params),
                         q_dtype == DType::bf16 ? 2e-2 : 6e-3);
          }
        }
        twins.host().evict(twins.host_one(), 10, 500);
        twins.device().evict(twins.device_one(), 10, 500);
        const KvStep host{.sequence = twins.host_one()}, device{.sequence = twins.device_one()};
        expect_equal(twins.attend_reference(0, 1, {&host, 1}), twins.attend_device(0, 1, {&device, 1}),
                     q_dtype == DType::bf16 ? 2e-2 : 6e-3);
      }
    }
  }
}

bool same_row(const Tensor& a, std::int64_t row_a, const Tensor& b, std::int64_t row_b) {
  for (std::int64_t head = 0; head < Twins::kHeads; ++head) {
    const auto at = [&](const Tensor& t, std::int64_t row) {
      return t.view().as<std::uint16_t>() + (head * t.size(2) + row) * Twins::kDim;
    };
    if (std::memcmp(at(a, row_a), at(b, row_b), Twins::kDim * sizeof(std::uint16_t)) != 0) return false;
  }
  return true;
}

// A token's bits do not depend on what else is in the call, or on how the tokens of its sequence are spread over calls.
TEST_F(HopperKvCache, TheSameBitsInAnyCall) {
  for (const DType cache_dtype : {DType::bf16, DType::i8}) {
    Twins twins(DType::bf16, cache_dtype, 64);
    constexpr std::int64_t kTokens = 40, kFirst = Twins::kLen - kTokens;
    const SequenceId one = twins.device_one(), other = twins.device().fork(one, 700);
    const KvStep all{.sequence = one, .tokens = kTokens};
    const Tensor together = twins.attend_device(kFirst, kTokens, {&all, 1});
    const Tensor again = twins.attend_device(kFirst, kTokens, {&all, 1});
    EXPECT_EQ(std::memcmp(together.view().data, again.view().data, again.bytes()), 0);
    for (const std::int64_t i : {0, 1, 17, 39}) {
      const KvStep single{.sequence = one, .tokens = 1, .position = kFirst + i};
      EXPECT_TRUE(same_row(twins.attend_device(kFirst + i, 1, {&single, 1}), 0, together, i)) << "token " << i;
    }
    // The rows of q follow one another: the last of these is the last of `together`.
    const KvStep batch[] = {{.sequence = other, .tokens = 2}, {.sequence = one, .tokens = 1}};
    const Tensor beside = twins.attend_device(Twins::kLen - 3, 3, batch);
    EXPECT_TRUE(same_row(beside, 2, together, kTokens - 1));
  }
}

TEST_F(HopperKvCache, RefusalsSayWhy) {
  Twins twins(DType::bf16, DType::bf16, 64);
  const KvStep step{.sequence = twins.device_one()};
  Placement call(&cuda_memory());
  Tensor q(DType::f16, {1, Twins::kHeads, 1, Twins::kDim}), out(DType::f16, {1, Twins::kHeads, 1, Twins::kDim});
  const ConstTensorView placed_q = call.input(q);
  const TensorView placed_out = call.output(out);
  const Explanation answer = explain_attend(twins.device(), placed_q, placed_out, {&step, 1});
  EXPECT_EQ(answer.chosen, "");
  EXPECT_NE(answer.error.find("the cache is bf16, needs i8 or the type of q, f16"), std::string::npos) << answer.error;
  Tensor q16(DType::bf16, {1, Twins::kHeads, 1, Twins::kDim});
  try {
    attend(twins.device(), call.input(q16), call.output(q16), {&step, 1});
    FAIL() << "attend ran without its workspace";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("attend_workspace()"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace rootdk::test
