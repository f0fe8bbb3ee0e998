// The KV cache through the C ABI: the same bits as the C++ cache, whatever the layout and type, and a status with a
// message for every bad argument.

#include "rootdk/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "c_api/c_tensor.h"
#include "rootdk/c_api.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 21, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kValueDim = 8, kLayers = 2;

rootdk_kv_cache_config small_config(int32_t layout, int32_t dtype) {
  rootdk_kv_cache_config config;
  rootdk_kv_cache_config_init(&config);
  config.layout = layout;
  config.dtype = dtype;
  config.layers = kLayers;
  config.kv_heads = kKvHeads;
  config.head_dim = kHeadDim;
  config.value_dim = kValueDim;
  if (layout == ROOTDK_KV_PAGED) {
    config.page_size = 16;
    config.pages = 8;
  } else {
    config.max_sequences = 3;
    config.max_len = 64;
  }
  return config;
}

KvCacheConfig same_in_cpp(const rootdk_kv_cache_config& config) {
  return {.layout = static_cast<KvLayout>(config.layout),
          .dtype = static_cast<DType>(config.dtype),
          .layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .value_dim = config.value_dim,
          .page_size = config.page_size,
          .pages = config.pages,
          .max_sequences = config.max_sequences,
          .max_len = config.max_len};
}

// A cache with one sequence of kTokens tokens in every layer, in C and in C++.
struct Pair {
  explicit Pair(const rootdk_kv_cache_config& config) : cpp(same_in_cpp(config)), sequence(cpp.open()) {
    EXPECT_EQ(ROOTDK_OK, rootdk_kv_cache_create(&config, &c)) << rootdk_last_error();
    EXPECT_EQ(ROOTDK_OK, rootdk_kv_open(c, &id));
    rootdk_rope_params rotation;
    rootdk_rope_params_init(&rotation);
    const rootdk_tensor ck = c_tensor(k), cv = c_tensor(v);
    const rootdk_kv_step step = {id, kTokens, -1};
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(ROOTDK_OK, rootdk_kv_append(c, &ck, &cv, &step, 1, layer, &rotation, nullptr)) << rootdk_last_error();
      append(cpp, k, v, {{.sequence = sequence, .tokens = kTokens}}, {.layer = layer, .rope = RopeParams{}});
    }
  }
  ~Pair() { rootdk_kv_cache_destroy(c); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  rootdk_kv_usage usage() const {
    rootdk_kv_usage result{};
    EXPECT_EQ(ROOTDK_OK, rootdk_kv_usage_of(c, &result));
    return result;
  }
  std::int64_t length(std::int64_t of) const {
    int64_t result = -1;
    EXPECT_EQ(ROOTDK_OK, rootdk_kv_length(c, of, 0, &result));
    return result;
  }

  Tensor k = wave({1, kKvHeads, kTokens, kHeadDim}, 0.17f), v = wave({1, kKvHeads, kTokens, kValueDim}, 0.23f);
  KvCache cpp;
  SequenceId sequence;
  rootdk_kv_cache* c = nullptr;
  int64_t id = -1;
};

// Attends three tokens at the end of a sequence, with every parameter set, in C and in C++.
void expect_same_attention(const Pair& pair, int64_t id, SequenceId sequence) {
  constexpr std::int64_t kNew = 3;
  Tensor q = wave({1, kHeads, kNew, kHeadDim}, 0.31f), sinks = wave({kHeads}, 0.5f), slopes = wave({kHeads}, 0.2f);
  Tensor table = wave({kHeads, 9}, 0.7f);
  Tensor out(DType::f32, {1, kHeads, kNew, kValueDim}), expected(DType::f32, {1, kHeads, kNew, kValueDim});
  std::vector<Tensor> stats, expected_stats;
  for (int i = 0; i < 5; ++i) {
    stats.emplace_back(DType::f32, std::initializer_list<std::int64_t>{1, kHeads, kNew});
    expected_stats.emplace_back(DType::f32, std::initializer_list<std::int64_t>{1, kHeads, kNew});
  }
  const rootdk_tensor cq = c_tensor(q), cout = c_tensor(out), csinks = c_tensor(sinks), cslopes = c_tensor(slopes);
  const rootdk_tensor ctable = c_tensor(table);
  rootdk_tensor cstats[5];
  for (std::size_t i = 0; i < 5; ++i) cstats[i] = c_tensor(stats[i]);
  rootdk_rope_params rotation;
  rootdk_rope_params_init(&rotation);
  rootdk_attend_params params;
  rootdk_attend_params_init(&params);
  params.layer = 1;
  params.scale_kind = ROOTDK_SCALE_VALUE;
  params.scale = 0.7;
  params.temperature = 1.5;
  params.softcap = 20;
  params.window_left = 12;
  params.window_keeps_first = 2;
  params.relative_table = &ctable;
  params.relative_zero = 1;
  params.alibi_slopes = &cslopes;
  params.sinks = &csinks;
  params.rope = &rotation;
  rootdk_attend_stats asked;
  rootdk_attend_stats_init(&asked);
  asked.lse = &cstats[0];
  asked.max_logit = &cstats[1];
  asked.max_weight = &cstats[2];
  asked.entropy = &cstats[3];
  asked.sum_p2 = &cstats[4];
  const rootdk_kv_step step = {id, kNew, -1};
  size_t scratch = 1;
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_attend_workspace(pair.c, &cq, &cout, &step, 1, &params, &asked, &scratch))
      << rootdk_last_error();
  EXPECT_EQ(scratch, 0u);  // the CPU takes its own
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_attend(pair.c, &cq, &cout, &step, 1, &params, &asked, nullptr)) << rootdk_last_error();
  attend(pair.cpp, q, expected, {{.sequence = sequence, .tokens = kNew}},
         {.layer = 1,
          .logits = {.scale = 0.7,
                     .temperature = 1.5,
                     .softcap = 20,
                     .relative_table = table,
                     .relative_zero = 1,
                     .alibi_slopes = slopes,
                     .sinks = sinks},
          .window_left = 12,
          .window_keeps_first = 2,
          .rope = RopeParams{}},
         {.lse = expected_stats[0],
          .max_logit = expected_stats[1],
          .max_weight = expected_stats[2],
          .entropy = expected_stats[3],
          .sum_p2 = expected_stats[4]});
  expect_same_bits(out, expected);
  for (std::size_t i = 0; i < 5; ++i) expect_same_bits(stats[i], expected_stats[i]);
}

struct CApiKvCache : testing::TestWithParam<std::tuple<int32_t, int32_t>> {
  Pair pair{small_config(std::get<0>(GetParam()), std::get<1>(GetParam()))};
};

TEST_P(CApiKvCache, AppendAndAttendMatchCpp) {
  EXPECT_EQ(kTokens, pair.length(pair.id));
  expect_same_attention(pair, pair.id, pair.sequence);
}

TEST_P(CApiKvCache, ForksTrimsAndEvictsAsCppDoes) {
  int64_t fork = -1;
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_fork(pair.c, pair.id, 17, &fork)) << rootdk_last_error();
  const SequenceId cpp_fork = pair.cpp.fork(pair.sequence, 17);
  EXPECT_EQ(17, pair.length(fork));
  expect_same_attention(pair, fork, cpp_fork);

  ASSERT_EQ(ROOTDK_OK, rootdk_kv_trim(pair.c, fork, 9)) << rootdk_last_error();
  pair.cpp.trim(cpp_fork, 9);
  EXPECT_EQ(9, pair.length(fork));
  expect_same_attention(pair, fork, cpp_fork);

  ASSERT_EQ(ROOTDK_OK, rootdk_kv_evict(pair.c, pair.id, 1, 4)) << rootdk_last_error();
  pair.cpp.evict(pair.sequence, 1, 4);
  EXPECT_EQ(kTokens, pair.length(pair.id));
  expect_same_attention(pair, pair.id, pair.sequence);

  const KvCacheUsage expected = pair.cpp.usage();
  const rootdk_kv_usage usage = pair.usage();
  EXPECT_EQ(expected.sequences, usage.sequences);
  EXPECT_EQ(expected.pages, usage.pages);
  EXPECT_EQ(expected.free_pages, usage.free_pages);
  EXPECT_EQ(expected.shared_pages, usage.shared_pages);
  EXPECT_EQ(expected.bytes, usage.bytes);

  ASSERT_EQ(ROOTDK_OK, rootdk_kv_close(pair.c, fork));
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_close(pair.c, pair.id));
  EXPECT_EQ(0, pair.usage().sequences);
  EXPECT_EQ(pair.usage().pages, pair.usage().free_pages);
}

INSTANTIATE_TEST_SUITE_P(LayoutsAndTypes, CApiKvCache,
                         testing::Combine(testing::Values(ROOTDK_KV_CONTIGUOUS, ROOTDK_KV_PAGED),
                                          testing::Values(ROOTDK_F32, ROOTDK_BF16, ROOTDK_F16, ROOTDK_I8,
                                                          ROOTDK_F8E4M3)));

TEST(CApiKvCacheStorage, LivesInTheCallersMemory) {
  rootdk_kv_cache_config config = small_config(ROOTDK_KV_PAGED, ROOTDK_F32);
  Tensor k(DType::f32, {kLayers, config.pages, kKvHeads, config.page_size, kHeadDim});
  Tensor v(DType::f32, {kLayers, config.pages, kKvHeads, config.page_size, kValueDim});
  const rootdk_tensor ck = c_tensor(k), cv = c_tensor(v);
  config.k = &ck;
  config.v = &cv;
  const Pair pair(config);
  expect_same_attention(pair, pair.id, pair.sequence);
  EXPECT_EQ(pair.v.values<float>()[0], v.values<float>()[0]);  // the first token's value went there
}

TEST(CApiKvCacheErrors, CarryTheMessage) {
  rootdk_kv_cache* none = nullptr;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_cache_create(nullptr, &none));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("configuration of a cache is null"));
  rootdk_kv_cache_config config = small_config(ROOTDK_KV_PAGED, ROOTDK_F32);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_cache_create(&config, nullptr));
  config.struct_size = 0;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_cache_create(&config, &none));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("rootdk_kv_cache_config has struct_size 0"));
  config = small_config(ROOTDK_KV_PAGED, ROOTDK_F32);
  config.page_size = 17;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_cache_create(&config, &none));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("17"));
  EXPECT_EQ(nullptr, none);
  rootdk_kv_cache_destroy(none);  // null is no error

  Pair pair(small_config(ROOTDK_KV_PAGED, ROOTDK_F32));
  int64_t number = -1;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_open(nullptr, &number));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("the cache is null"));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_length(pair.c, 99, 0, &number));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("99"));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_length(pair.c, pair.id, kLayers, &number));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_length(pair.c, pair.id, 0, nullptr));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_trim(pair.c, pair.id, kTokens + 1));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("22"));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_fork(pair.c, pair.id, kTokens + 1, &number));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_evict(pair.c, pair.id, -1, 4));
  EXPECT_EQ(-1, number);
  EXPECT_EQ(kTokens, pair.length(pair.id));

  const rootdk_tensor ck = c_tensor(pair.k), cv = c_tensor(pair.v);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_append(pair.c, &ck, &cv, nullptr, 1, 0, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("steps is null, step_count 1"));
  const rootdk_kv_step misplaced = {pair.id, kTokens, 3};
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_append(pair.c, &ck, &cv, &misplaced, 1, 0, nullptr, nullptr));
  rootdk_attend_params params;
  rootdk_attend_params_init(&params);
  params.scale_kind = 7;
  const rootdk_kv_step step = {pair.id, kTokens, -1};
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_attend(pair.c, &ck, &cv, &step, 1, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("scale_kind 7"));
}

TEST(CApiKvCacheErrors, ACacheWithoutPagesSaysHowManyItNeeds) {
  rootdk_kv_cache_config config = small_config(ROOTDK_KV_PAGED, ROOTDK_F32);
  config.pages = 1;
  rootdk_kv_cache* cache = nullptr;
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_cache_create(&config, &cache));
  int64_t id = -1;
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_open(cache, &id));
  Tensor k = wave({1, kKvHeads, kTokens, kHeadDim}, 0.17f), v = wave({1, kKvHeads, kTokens, kValueDim}, 0.23f);
  const rootdk_tensor ck = c_tensor(k), cv = c_tensor(v);
  const rootdk_kv_step step = {id, kTokens, -1};
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_append(cache, &ck, &cv, &step, 1, 0, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("2 pages of 16 tokens needed, 1 of 1 free"));
  rootdk_kv_cache_destroy(cache);
}

TEST(KvCacheCApi, TellsItsConfigurationItsPagesAndItsChoice) {
  const Pair pair(small_config(ROOTDK_KV_PAGED, ROOTDK_F32));
  rootdk_kv_cache_config config;
  rootdk_kv_cache_config_init(&config);
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_config_of(pair.c, &config)) << rootdk_last_error();
  EXPECT_EQ(kKvHeads, config.kv_heads);
  EXPECT_EQ(pair.cpp.config().value_dim, config.value_dim);
  EXPECT_EQ(pair.cpp.config().pages, config.pages);

  ASSERT_EQ(ROOTDK_OK, rootdk_kv_grow(pair.c, 12)) << rootdk_last_error();
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_config_of(pair.c, &config));
  EXPECT_EQ(12, config.pages);

  int64_t page = -1, references = 0;
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_page_of(pair.c, pair.id, kTokens - 1, &page)) << rootdk_last_error();
  rootdk_tensor k{}, v{}, scales{};
  ASSERT_EQ(ROOTDK_OK, rootdk_kv_page(pair.c, page, 0, &k, &v, &scales, nullptr, &references)) << rootdk_last_error();
  EXPECT_EQ(1, references);
  EXPECT_EQ(3, k.rank);
  EXPECT_EQ(kHeadDim, k.shape[2]);
  EXPECT_EQ(kValueDim, v.shape[2]);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_kv_page_of(pair.c, pair.id, kTokens, &page));

  Tensor q = wave({1, kHeads, 1, kHeadDim}, 0.31f), out(DType::f32, {1, kHeads, 1, kValueDim});
  const rootdk_tensor cq = c_tensor(q), cout = c_tensor(out);
  const rootdk_kv_step step = {pair.id, 1, -1};
  const std::string chosen = explain_attend(pair.cpp, q, out, {{.sequence = pair.sequence}}).chosen;
  EXPECT_THAT(rootdk_kv_explain_attend(pair.c, &cq, &cout, &step, 1, nullptr, nullptr, nullptr),
              HasSubstr("\"chosen\": \"" + chosen + "\""));
  rootdk_execution execution;
  rootdk_execution_init(&execution);
  execution.target = "abacus";
  size_t bytes = 0;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT,
            rootdk_kv_attend_workspace_on(pair.c, &cq, &cout, &step, 1, nullptr, nullptr, &execution, &bytes));
}

}  // namespace
}  // namespace rootdk
