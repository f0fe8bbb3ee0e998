// The KV cache: an operation that runs out of memory has changed nothing.

#include "rootdk/kv_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rootdk/error.h"
#include "support/tensors.h"
#include "survival/survive.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kLayers = 2, kKvHeads = 2, kHeads = 4, kHeadDim = 16, kPageSize = 16;

KvCacheConfig small_config(KvLayout layout, DType dtype) {
  KvCacheConfig config{.layout = layout, .dtype = dtype, .layers = kLayers, .kv_heads = kKvHeads, .head_dim = kHeadDim};
  if (layout == KvLayout::paged) {
    config.page_size = kPageSize;
    config.pages = 40;
  } else {
    config.max_sequences = 6;
    config.max_len = 96;
  }
  return config;
}

Tensor rows(std::int64_t tokens, std::uint64_t seed, std::int64_t heads = kKvHeads) {
  return random_tensor(DType::f32, {1, heads, tokens, kHeadDim}, seed);
}

// A cache with two sequences that share pages, and what is seen of it from outside.
class CacheSubject : public Subject {
 public:
  explicit CacheSubject(const KvCacheConfig& config) : cache_(config) {
    ids_.push_back(cache_.open());
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      append(cache_, rows(37, 1), rows(37, 2), {{.sequence = ids_[0], .tokens = 37}}, {.layer = layer});
    }
    if (config.layout == KvLayout::paged) ids_.push_back(cache_.fork(ids_[0]));
    ids_.push_back(cache_.open());
  }

  Bits kept() const override {
    Bits bits;
    const KvCacheUsage usage = cache_.usage();
    for (const std::int64_t number : {usage.sequences, usage.free_pages, usage.shared_pages, usage.bytes}) {
      bits.add(number);
    }
    for (const SequenceId id : ids_) {
      bits.add(id);
      for (std::int64_t layer = 0; layer < kLayers; ++layer) add_sequence(bits, id, layer);
    }
    return bits;
  }
  Bits result() const override { return kept(); }

 protected:
  void add_sequence(Bits& bits, SequenceId id, std::int64_t layer) const {
    const std::int64_t length = cache_.length(id, layer);
    bits.add(length);
    for (std::int64_t position = 0; position < length; ++position) {
      std::int64_t page = -1;
      try {
        page = cache_.page_of(id, position);
      } catch (const Error&) {
        bits.add(page);
        continue;
      }
      bits.add(page);
      const KvPage memory = cache_.page(page, layer);
      const std::int64_t row = position % cache_.config().page_size;
      for (const ConstTensorView& part : {memory.k, memory.v, memory.k_scales, memory.v_scales}) {
        if (part.defined()) bits.add(clone(part.slice(1, row, row + 1)));
      }
    }
  }

  KvCache cache_;
  std::vector<SequenceId> ids_;
};

// A subject whose call is a function of the cache and its sequences.
class CacheCall final : public CacheSubject {
 public:
  using Call = std::function<void(KvCache& cache, std::vector<SequenceId>& ids)>;
  CacheCall(const KvCacheConfig& config, Call call) : CacheSubject(config), call_(std::move(call)) {
    ids_.reserve(ids_.size() + 1);  // of the test: not the cache's memory
  }
  void call() override { call_(cache_, ids_); }

 private:
  Call call_;
};

void expect_cache_survives(const std::string& name, const KvCacheConfig& config, const CacheCall::Call& call) {
  expect_survives(name, [&] { return std::make_unique<CacheCall>(config, call); });
}

const KvCacheConfig kPaged = small_config(KvLayout::paged, DType::bf16);

TEST(SurvivesKvCache, Creation) {
  for (const KvLayout layout : {KvLayout::paged, KvLayout::contiguous}) {
    for (const DType dtype : {DType::f32, DType::i8}) {
      expect_survives("creation", computes([&] {
                        const KvCache cache(small_config(layout, dtype));
                        Bits bits;
                        bits.add(cache.usage().bytes);
                        return bits;
                      }));
    }
  }
}

TEST(SurvivesKvCache, Open) {
  expect_cache_survives("open", kPaged, [](KvCache& cache, auto& ids) { ids.push_back(cache.open()); });
}

TEST(SurvivesKvCache, Fork) {
  expect_cache_survives("fork", kPaged, [](KvCache& cache, auto& ids) { ids.push_back(cache.fork(ids[0])); });
  expect_cache_survives("fork of a part", kPaged,
                        [](KvCache& cache, auto& ids) { ids.push_back(cache.fork(ids[0], 20)); });
}

// Close, trim and evict take no memory, even where none is left.
TEST(SurvivesKvCache, WhatGivesMemoryBackNeedsNone) {
  CacheCall subject(kPaged, [](KvCache& cache, std::vector<SequenceId>& ids) {
    cache.trim(ids[0], 30);
    cache.evict(ids[1], 2, 4);
    cache.close(ids[0]);
    cache.close(ids[1]);
    cache.close(ids[2]);
  });
  {
    const FailingAllocation none(1, Scarcity::for_good);
    EXPECT_NO_THROW(subject.call());
    EXPECT_FALSE(FailingAllocation::happened());
  }
}

// Into shared pages, which are copied; into fresh pages; with rotation; and nothing for one sequence.
TEST(SurvivesKvCache, Append) {
  const Tensor k = rows(60, 3), v = rows(60, 4);
  for (const bool rotated : {false, true}) {
    const AppendParams params{.layer = 1, .rope = rotated ? std::optional<RopeParams>(RopeParams{}) : std::nullopt};
    for (const DType dtype : {rotated ? DType::f32 : DType::bf16, rotated ? DType::i8 : DType::f8e4m3}) {
      expect_cache_survives("append to " + std::string(name_of(dtype)), small_config(KvLayout::paged, dtype),
                            [&](KvCache& cache, std::vector<SequenceId>& ids) {
                              append(cache, k, v,
                                     {{.sequence = ids[0], .tokens = 20},
                                      {.sequence = ids[1], .tokens = 5},
                                      {.sequence = ids[2], .tokens = 35}},
                                     params);
                            });
      expect_cache_survives(
          "append to contiguous " + std::string(name_of(dtype)), small_config(KvLayout::contiguous, dtype),
          [&](KvCache& cache, std::vector<SequenceId>& ids) {
            append(cache, k, v, {{.sequence = ids[1], .tokens = 40}, {.sequence = ids[0], .tokens = 20}}, params);
          });
    }
  }
}

// Enough tokens that they are spread over threads.
TEST(SurvivesKvCache, AppendOnThreads) {
  const std::int64_t tokens = 70;
  const Tensor k = random_tensor(DType::f32, {1, 8, tokens, 64}, 3);
  class Wide final : public Subject {
   public:
    explicit Wide(const Tensor& k) : k_(k), id_(cache_.open()) {}
    void call() override {
      append(cache_, k_, k_, {{.sequence = id_, .tokens = k_.size(2)}}, {.rope = RopeParams{}},
             {.cpu = {.executor = &shared_executor(3)}});
    }
    Bits kept() const override {
      Bits bits;
      bits.add(cache_.usage().free_pages);
      bits.add(cache_.length(id_));
      return bits;
    }
    Bits result() const override {
      Bits bits = kept();
      for (std::int64_t page = 0; page < 5; ++page) bits.add(clone(cache_.page(page).k));
      return bits;
    }

   private:
    const Tensor& k_;
    KvCache cache_{{.dtype = DType::i8, .kv_heads = 8, .head_dim = 64, .page_size = 16, .pages = 8}};
    SequenceId id_;
  };
  expect_survives("append on threads", [&] { return std::make_unique<Wide>(k); });
}

Bits attended(const KvCache& cache, KvSteps steps, std::int64_t tokens, const Execution& execution) {
  const Tensor q = rows(tokens, 9, kHeads);
  Tensor out(DType::f32, {1, kHeads, tokens, kHeadDim}), lse(DType::f32, {1, kHeads, tokens});
  attend(cache, q, out, steps, {.layer = 1, .rope = RopeParams{}}, {.lse = lse}, execution);
  Bits bits;
  bits.add(out);
  bits.add(lse);
  return bits;
}

TEST(SurvivesKvCache, Attend) {
  for (const DType dtype : {DType::bf16, DType::i8}) {
    KvCache cache(small_config(KvLayout::paged, dtype));
    const SequenceId a = cache.open(), b = cache.open();
    append(cache, rows(200, 1), rows(200, 2), {{.sequence = a, .tokens = 150}, {.sequence = b, .tokens = 50}},
           {.layer = 1});
    const KvStep few[] = {{.sequence = a, .tokens = 2}, {.sequence = b, .tokens = 1}};
    const KvStep many[] = {{.sequence = a, .tokens = 20}, {.sequence = b, .tokens = 7}};
    for (const char* target : {"", "reference"}) {
      const Execution execution{.target = target, .cpu = {.executor = &shared_executor(3)}};
      const SurvivalOptions options{.one_by_one = 40, .growth = 0.2};
      expect_survives("attend " + std::string(target), computes([&] { return attended(cache, few, 3, execution); }),
                      options);
      expect_survives("attend " + std::string(target), computes([&] { return attended(cache, many, 27, execution); }),
                      options);
    }
  }
}

}  // namespace
}  // namespace rootdk::test
