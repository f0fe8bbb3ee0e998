#include "rootdk/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <malloc.h>
#include <algorithm>

#include <functional>
#include <string>

#include "rootdk/error.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kHeads = 2, kDim = 8;

KvCache paged(std::int64_t pages, std::int64_t page_size = 16, std::int64_t layers = 1) {
  return KvCache({.dtype = DType::f32,
                  .layers = layers,
                  .kv_heads = kHeads,
                  .head_dim = kDim,
                  .page_size = page_size,
                  .pages = pages});
}

void give(KvCache& cache, SequenceId sequence, std::int64_t tokens, std::int64_t layer = 0) {
  const Tensor x = random_tensor(DType::f32, {1, kHeads, tokens, kDim}, 1);
  append(cache, x, x, {{.sequence = sequence, .tokens = tokens}}, {.layer = layer});
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Everything that can be seen of a cache, to show that a refused call changed nothing.
struct Snapshot {
  Snapshot(const KvCache& cache, SequenceId sequence) {
    const KvCacheUsage usage = cache.usage();
    numbers = {usage.sequences, usage.free_pages, usage.shared_pages, cache.length(sequence)};
    for (std::int64_t position = 0; position < cache.length(sequence); ++position) {
      numbers.push_back(cache.page_of(sequence, position));
      for (const double x : doubles(cache.page(numbers.back()).k)) keys.push_back(x);
    }
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;

  std::vector<std::int64_t> numbers;
  std::vector<double> keys;
};

TEST(KvCache, TakesPagesAsTokensComeAndGivesThemBack) {
  KvCache cache = paged(4);
  const SequenceId s = cache.open();
  EXPECT_EQ(cache.usage().free_pages, 4);
  give(cache, s, 16);
  EXPECT_EQ(cache.usage().free_pages, 3);
  give(cache, s, 1);
  EXPECT_EQ(cache.usage().free_pages, 2);
  EXPECT_EQ(cache.length(s), 17);
  cache.trim(s, 16);
  EXPECT_EQ(cache.usage().free_pages, 3);
  cache.close(s);
  EXPECT_EQ(cache.usage().free_pages, 4);
  EXPECT_EQ(cache.usage().sequences, 0);
}

TEST(KvCache, ForkSharesUntilOneWrites) {
  KvCache cache = paged(6);
  const SequenceId parent = cache.open();
  give(cache, parent, 20);
  const SequenceId child = cache.fork(parent);
  EXPECT_EQ(cache.usage().free_pages, 4);
  EXPECT_EQ(cache.usage().shared_pages, 2);
  give(cache, child, 1);  // the half-filled page is copied, the full one stays shared
  EXPECT_EQ(cache.usage().free_pages, 3);
  EXPECT_EQ(cache.usage().shared_pages, 1);
  EXPECT_EQ(cache.page_of(parent, 3), cache.page_of(child, 3));
  EXPECT_NE(cache.page_of(parent, 19), cache.page_of(child, 19));
  give(cache, parent, 1);  // now the parent holds its page alone
  EXPECT_EQ(cache.usage().free_pages, 3);
  const SequenceId prefix = cache.fork(parent, 16);
  EXPECT_EQ(cache.length(prefix), 16);
  EXPECT_EQ(cache.page(cache.page_of(prefix, 0)).references, 3);
}

TEST(KvCache, BothForksMayWriteInOneCall) {
  KvCache cache = paged(2);
  const SequenceId a = cache.open();
  give(cache, a, 3);
  const SequenceId b = cache.fork(a);
  // Two sequences leave one shared page: only the first has to copy.
  const Tensor x = random_tensor(DType::f32, {1, kHeads, 2, kDim}, 1);
  append(cache, x, x, {{.sequence = a}, {.sequence = b}});
  EXPECT_EQ(cache.usage().free_pages, 0);
  EXPECT_EQ(cache.usage().shared_pages, 0);
}

TEST(KvCache, EvictFreesWholePagesAndKeepsPositions) {
  KvCache cache = paged(8);
  const SequenceId s = cache.open();
  give(cache, s, 100);    // 7 pages
  cache.evict(s, 4, 20);  // the gap is 4 to 80: pages 1 to 4
  EXPECT_EQ(cache.usage().free_pages, 1 + 4);
  EXPECT_EQ(cache.length(s), 100);
  EXPECT_THAT(message_of([&] { cache.page_of(s, 40); }), HasSubstr("position 40 of sequence 0 was evicted"));
  cache.evict(s, 10, 50);  // inside the gap: nothing new
  EXPECT_EQ(cache.usage().free_pages, 5);
  cache.evict(s, 0, 20);
  EXPECT_EQ(cache.usage().free_pages, 6);
  EXPECT_THAT(message_of([&] { cache.trim(s, 50); }), HasSubstr("length 50 lies in the evicted positions 0 to 80"));
  EXPECT_THAT(message_of([&] { cache.fork(s, 50); }), HasSubstr("length 50 lies in the evicted positions 0 to 80"));
  EXPECT_THAT(message_of([&] { cache.evict(s, 90, 0); }), HasSubstr("the tokens 80 to 90 would be lost"));
}

// One gap a sequence: what was to be kept is never lost without a word.
TEST(KvCache, EvictKeepsWhatItWasToldToKeep) {
  KvCache cache = paged(16);
  const SequenceId a = cache.open(), b = cache.open();
  give(cache, a, 100);
  give(cache, b, 100);
  cache.evict(a, 3, 2);  // the gap is 3 to 98
  cache.evict(a, 0, 100);
  EXPECT_NO_THROW(cache.page_of(a, 0));
  EXPECT_NO_THROW(cache.page_of(a, 2));

  cache.evict(b, 50, 5);  // 50 to 95
  EXPECT_THAT(
      message_of([&] { cache.evict(b, 4, 90); }),
      HasSubstr("evict the positions 4 to 10, apart from those evicted before, 50 to 95 of sequence 1: there is "
                "one gap a sequence, and the tokens 10 to 50 would be lost"));
  for (const std::int64_t position : {4, 10, 49}) EXPECT_NO_THROW(cache.page_of(b, position));
  cache.evict(b, 10, 50);  // touches: one gap from 10 on
  EXPECT_THAT(message_of([&] { cache.page_of(b, 10); }), HasSubstr("was evicted"));
  EXPECT_NO_THROW(cache.page_of(b, 9));
}

TEST(KvCache, LayersShareSequencesAndPages) {
  KvCache cache = paged(4, 16, 3);
  const SequenceId s = cache.open();
  for (std::int64_t layer = 0; layer < 3; ++layer) give(cache, s, 20, layer);
  EXPECT_EQ(cache.usage().free_pages, 2);
  const SequenceId child = cache.fork(s);
  for (std::int64_t layer = 0; layer < 3; ++layer) give(cache, child, 2, layer);
  EXPECT_EQ(cache.usage().free_pages, 1);  // one copy for all layers
  EXPECT_EQ(cache.length(child, 2), 22);
  EXPECT_THAT(message_of([&] { cache.length(child, 3); }), HasSubstr("layer 3 is not in 0 to 2"));
}

TEST(KvCache, FullSaysSoWithTheNumbersAndOverwritesNothing) {
  KvCache cache = paged(3);
  const SequenceId s = cache.open(), other = cache.open();
  give(cache, s, 30);
  give(cache, other, 10);
  const Snapshot before(cache, s), before_other(cache, other);
  EXPECT_EQ(message_of([&] { give(cache, s, 40); }),
            "append: the cache is full: 3 pages of 16 tokens needed, 0 of 3 free");
  EXPECT_EQ(Snapshot(cache, s), before);
  EXPECT_EQ(Snapshot(cache, other), before_other);
  give(cache, s, 2);  // what fits still goes in

  KvCache slots({.layout = KvLayout::contiguous,
                 .dtype = DType::f32,
                 .kv_heads = kHeads,
                 .head_dim = kDim,
                 .max_sequences = 1,
                 .max_len = 10});
  const SequenceId a = slots.open(), b = slots.open();
  give(slots, a, 8);
  EXPECT_EQ(message_of([&] { give(slots, a, 3); }),
            "append: sequence 0 has 8 tokens and room for 10: 3 more do not fit");
  EXPECT_EQ(message_of([&] { give(slots, b, 1); }),
            "append: the cache is full: 1 page of 10 tokens needed, 0 of 1 free");
}

TEST(KvCache, BadUseIsRefusedAndChangesNothing) {
  KvCache cache = paged(8);
  const SequenceId s = cache.open(), closed = cache.open();
  give(cache, s, 20);
  cache.close(closed);
  const Snapshot before(cache, s);
  const Tensor one = random_tensor(DType::f32, {1, kHeads, 1, kDim}, 1);
  const Tensor wide = random_tensor(DType::f32, {1, kHeads, 1, kDim + 1}, 1);
  const Tensor whole(DType::i32, {1, kHeads, 1, kDim});
  Tensor out(DType::f32, {1, kHeads, 1, kDim}), half(DType::bf16, {1, kHeads, 1, kDim});
  const Tensor three = random_tensor(DType::f32, {3}, 1);
  const Tensor two = random_tensor(DType::f32, {1, kHeads, 2, kDim}, 1);
  const auto unknown = static_cast<SequenceId>(77);
  auto put = [&](ConstTensorView k, ConstTensorView v, KvStep step, const AppendParams& params = {}) {
    return [&cache, k, v, step, params] { append(cache, k, v, {&step, 1}, params); };
  };
  auto look = [&](ConstTensorView q, TensorView to, KvStep step, const AttendParams& params = {},
                  const AttentionStats& stats = {}) {
    return [&cache, q, to, step, params, stats] { attend(cache, q, to, {&step, 1}, params, stats); };
  };
  const std::pair<std::function<void()>, const char*> kTable[] = {
      {put(one, one, {.sequence = unknown}), "append: sequence 77 is unknown"},
      {put(one, one, {.sequence = closed}), "append: sequence 1 was closed"},
      {put(one, one, {}), "append: sequence -1 is unknown"},
      {put(one, one, {.sequence = s, .position = 22}),
       "position 22 of sequence 0 leaves a gap or overwrites: its length is 20"},
      {put(one, one, {.sequence = s, .position = 19}), "position 19 of sequence 0 leaves a gap or overwrites"},
      {put(one, one, {.sequence = s, .tokens = 2}), "append: tokens 2 of sequence 0 is more than the 1 rows given"},
      {put(one, one, {.sequence = s, .tokens = 0}), "append: the steps have 0 tokens but the tensors 1 rows"},
      {put(one, one, {.sequence = s, .tokens = -1}), "append: tokens -1 of sequence 0 is negative"},
      {put(wide, one, {.sequence = s}), "append: k is f32 [1, 2, 1, 9], expected [1, 2, 1, 8]"},
      {put(one, wide, {.sequence = s}), "append: v is f32 [1, 2, 1, 9], expected [1, 2, 1, 8]"},
      {put(whole, one, {.sequence = s}), "append: k has type i32, expected f32 or bf16 or f16 or f64"},
      {put({}, one, {.sequence = s}), "append: k is not given"},
      {put(one, one, {.sequence = s}, {.layer = 1}), "append: layer 1 is not in 0 to 0"},
      {put(one, one, {.sequence = s}, {.rope = RopeParams{.rotary_dim = 10}}),
       "rotary_dim 10 is not in 0 to head_dim 8"},
      {[&] {
         append(cache, two, two, {{.sequence = s}, {.sequence = s}});
       },
       "append: sequence 0 is named twice"},
      {look(one, out, {.sequence = unknown}), "attend: sequence 77 is unknown"},
      {look(one, out, {.sequence = s, .position = 20}),
       "attend: position 20 with tokens 1 of sequence 0 is not within its length 20"},
      {look(one, out, {.sequence = s, .position = INT64_MAX}),
       "attend: position 9223372036854775807 with tokens 1 of sequence 0 is not within its length 20"},
      {look(out, out, {.sequence = s}), "attend: out and q begin at the same address"},
      {look(one, half, {.sequence = s}), "attend: out is bf16 but q is f32"},
      {look(wide, out, {.sequence = s}), "attend: q is f32 [1, 2, 1, 9], expected [1, 2, 1, 8]"},
      {look(one, out, {.sequence = s}, {.layer = -1}), "attend: layer -1 is not in 0 to 0"},
      {look(one, out, {.sequence = s}, {.logits = {.temperature = 0}}), "attend: temperature 0 must be positive"},
      {look(one, out, {.sequence = s}, {.logits = {.softcap = -1}}), "attend: softcap -1 must be finite"},
      {look(one, out, {.sequence = s}, {.logits = {.scale = 1e39}}),
       "attend: scale 1e+39 / temperature 1 is 1e+39, over the limit"},
      {look(one, out, {.sequence = s}, {.window_left = -2}), "attend: window_left -2 must be at least 0"},
      {look(one, out, {.sequence = s}, {.logits = {.sinks = three}}), "attend: sinks is f32 [3]"},
      {look(one, out, {.sequence = s}, {}, {.weights = out}), "attend: stats.weights is not available over a cache"},
      {look(one, out, {.sequence = s}, {}, {.lse = half}), "attend: stats.lse has type bf16, expected f32"},
      {[&] { cache.fork(s, 21); }, "fork: length 21 is not in 0 to 20, the length of sequence 0"},
      {[&] { cache.trim(s, 21); }, "trim: length 21 is not in 0 to 20, the length of sequence 0"},
      {[&] { cache.evict(s, -1, 0); }, "evict: keep_first -1 and keep_last 0 must not be negative"},
      {[&] { cache.close(closed); }, "close: sequence 1 was closed"},
      {[&] { cache.page_of(s, 20); }, "page_of: position 20 is not in 0 to 19, the tokens of sequence 0"},
      {[&] { cache.page(7); }, "page: page 7 is free: no sequence holds it"},
      {[&] { cache.page(8); }, "page: 8 is not in 0 to 7"},
  };
  for (const auto& [body, expected] : kTable) {
    EXPECT_THAT(message_of(body), HasSubstr(expected));
    EXPECT_EQ(Snapshot(cache, s), before) << expected;
  }
}

TEST(KvCache, ConfigurationsThatCannotBeAreRefused) {
  auto make = [](const KvCacheConfig& config) { return [config] { KvCache cache(config); }; };
  const std::pair<KvCacheConfig, const char*> kTable[] = {
      {{.dtype = DType::i32, .kv_heads = 1, .head_dim = 8, .pages = 1}, "dtype i32 is none of"},
      {{.kv_heads = 0, .head_dim = 8, .pages = 1}, "kv_heads 0, head_dim 8"},
      {{.kv_heads = 1, .head_dim = 8, .page_size = 24, .pages = 1},
       "page_size 24 is not a multiple of 16 in 16 to 256"},
      {{.kv_heads = 1, .head_dim = 8, .page_size = 512, .pages = 1}, "page_size 512"},
      {{.kv_heads = 1, .head_dim = 8}, "pages 0 must be at least 1"},
      {{.kv_heads = 1, .head_dim = 8, .pages = 1, .max_len = 5}, "belong to the contiguous layout"},
      {{.layout = KvLayout::contiguous, .kv_heads = 1, .head_dim = 8},
       "contiguous needs max_sequences and max_len, got 0 and 0"},
      {{.kv_heads = 1, .head_dim = 8, .pages = 1, .device = {DeviceKind::cuda, 0}}, "give it as storage"},
      {{.kv_heads = 1, .head_dim = 8, .pages = std::int64_t{1} << 40}, "below 2^31"},
  };
  for (const auto& [config, expected] : kTable) EXPECT_THAT(message_of(make(config)), HasSubstr(expected));
}

TEST(KvCache, UsesTheMemoryOfTheCaller) {
  Tensor k(DType::f32, {1, 2, kHeads, 16, kDim}), v(DType::f32, {1, 2, kHeads, 16, kDim});
  KvCache cache({.dtype = DType::f32,
                 .kv_heads = kHeads,
                 .head_dim = kDim,
                 .page_size = 16,
                 .pages = 2,
                 .storage = {.k = k, .v = v}});
  give(cache, cache.open(), 1);
  EXPECT_NE(k.values<float>()[0], 0);
  KvCacheConfig wrong = cache.config();
  wrong.pages = 3;
  EXPECT_THAT(message_of([&] { KvCache other(wrong); }),
              HasSubstr("kv_cache: storage.k is f32 [1, 2, 2, 16, 8], expected"));
}

// A server opens and closes sequences all day.
TEST(KvCache, A100000SequencesLeaveNothingBehind) {
  KvCache cache = paged(8);
  const Tensor x = random_tensor(DType::f32, {1, kHeads, 3, kDim}, 1);
  auto serve = [&](int sequences) {
    for (int n = 0; n < sequences; ++n) {
      const SequenceId s = cache.open();
      append(cache, x, x, {{.sequence = s, .tokens = 3}});
      const SequenceId child = cache.fork(s);
      cache.close(s);
      cache.close(child);
    }
  };
  serve(1000);
  const auto before = mallinfo2().uordblks;
  serve(100000);
  EXPECT_EQ(cache.usage().free_pages, 8);
  EXPECT_LE(mallinfo2().uordblks, before + 1024);
}

TEST(KvCache, GrowKeepsWhatItHolds) {
  for (const DType dtype : {DType::f32, DType::i8}) {
    KvCache cache({.dtype = dtype, .layers = 2, .kv_heads = 2, .head_dim = 4, .page_size = 16, .pages = 2});
    const SequenceId a = cache.open();
    Tensor k(DType::f32, {1, 2, 20, 4}), v(DType::f32, {1, 2, 20, 4}), q(DType::f32, {1, 2, 1, 4});
    for (std::size_t i = 0; i < 160; ++i) {
      k.values<float>()[i] = static_cast<float>(i % 7) - 3;
      v.values<float>()[i] = static_cast<float>(i % 11);
    }
    for (float& x : q.values<float>()) x = 0.5f;
    for (std::int64_t layer : {0, 1}) append(cache, k, v, {{.sequence = a, .tokens = 20}}, {.layer = layer});
    Tensor before(DType::f32, {1, 2, 1, 4}), after(DType::f32, {1, 2, 1, 4});
    attend(cache, q, before, {{.sequence = a}}, {.layer = 1});
    EXPECT_THROW(append(cache, k, v, {{.sequence = a, .tokens = 20}}), Error);
    cache.grow(5);
    EXPECT_EQ(cache.usage().pages, 5);
    EXPECT_EQ(cache.usage().free_pages, 3);
    attend(cache, q, after, {{.sequence = a}}, {.layer = 1});
    EXPECT_TRUE(std::ranges::equal(before.values<float>(), after.values<float>()));
    append(cache, k, v, {{.sequence = a, .tokens = 20}});
    EXPECT_EQ(cache.page_of(a, 39), 2);
    cache.grow(3);  // fewer than there are: nothing
    EXPECT_EQ(cache.usage().pages, 5);
  }
  KvCache contiguous({.layout = KvLayout::contiguous, .kv_heads = 1, .head_dim = 4, .max_sequences = 1, .max_len = 4});
  EXPECT_THROW(contiguous.grow(2), Error);
}

}  // namespace
}  // namespace rootdk::test
