// The C ABI gives the same bits as the C++ API, and turns every bad argument into a status with a message.

#include "rootdk/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "c_api/c_tensor.h"
#include "rootdk/rootdk.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

struct CApi : testing::Test {
  Tensor q = wave({2, 4, 5, 8}, 0.31f), k = wave({2, 2, 7, 8}, 0.17f), v = wave({2, 2, 7, 6}, 0.23f);
  Tensor out{DType::f32, {2, 4, 5, 6}}, expected{DType::f32, {2, 4, 5, 6}};
  Tensor lse{DType::f32, {2, 4, 5}}, expected_lse{DType::f32, {2, 4, 5}};
  rootdk_tensor cq = c_tensor(q), ck = c_tensor(k), cv = c_tensor(v), cout = c_tensor(out), clse = c_tensor(lse);
};

TEST_F(CApi, DescribesContiguousTensors) {
  rootdk_tensor tensor;
  const int64_t shape[] = {2, 4, 5, 8};
  ASSERT_EQ(ROOTDK_OK, rootdk_tensor_init(&tensor, q.view().data, ROOTDK_F32, 4, shape)) << rootdk_last_error();
  EXPECT_EQ(0, std::memcmp(&tensor, &cq, sizeof tensor));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_tensor_init(&tensor, nullptr, ROOTDK_F32, 7, shape));
  EXPECT_STREQ(rootdk_last_error(), "c_api: tensor rank 7 is not in 0 to 6");
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_tensor_init(&tensor, nullptr, 99, 4, shape));
  EXPECT_STREQ(rootdk_last_error(), "c_api: tensor dtype 99 is not in 0 to 8");
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_tensor_init(&tensor, nullptr, ROOTDK_F32, 4, nullptr));
  EXPECT_STREQ(rootdk_last_error(), "c_api: shape is null");
}

TEST_F(CApi, ForwardMatchesCpp) {
  Tensor sinks = wave({4}, 0.5f);
  const rootdk_tensor csinks = c_tensor(sinks);
  rootdk_attention_params params;
  rootdk_attention_params_init(&params);
  params.causal = 1;
  params.window_left = 3;
  params.scale_kind = ROOTDK_SCALE_VALUE;
  params.scale = 0.7;
  params.sinks = &csinks;
  params.dropout = 0.25;
  params.seed = 9;
  rootdk_attention_stats stats;
  rootdk_attention_stats_init(&stats);
  stats.lse = &clse;
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&cq, &ck, &cv, &cout, &params, &stats, nullptr)) << rootdk_last_error();
  attention(q, k, v, expected,
            {.logits = {.scale = 0.7, .sinks = sinks}, .causal = true, .window_left = 3, .dropout = 0.25, .seed = 9},
            {.lse = expected_lse});
  expect_same_bits(out, expected);
  expect_same_bits(lse, expected_lse);
}

TEST_F(CApi, BackwardMatchesCpp) {
  ASSERT_EQ(ROOTDK_OK, [&] {
    rootdk_attention_stats stats;
    rootdk_attention_stats_init(&stats);
    stats.lse = &clse;
    return rootdk_attention(&cq, &ck, &cv, &cout, nullptr, &stats, nullptr);
  }());
  Tensor grad_out = wave({2, 4, 5, 6}, 0.41f);
  Tensor dq(DType::f32, {2, 4, 5, 8}), dk(DType::f32, {2, 2, 7, 8}), dv(DType::f32, {2, 2, 7, 6});
  Tensor eq(DType::f32, {2, 4, 5, 8}), ek(DType::f32, {2, 2, 7, 8}), ev(DType::f32, {2, 2, 7, 6});
  const rootdk_tensor cgrad = c_tensor(grad_out), cdq = c_tensor(dq), cdk = c_tensor(dk), cdv = c_tensor(dv);
  rootdk_attention_saved saved{sizeof saved, &cq, &ck, &cv, &cout, &clse, nullptr};
  rootdk_attention_upstream upstream{sizeof upstream, &cgrad, nullptr, nullptr};
  rootdk_attention_gradients gradients{};
  gradients.struct_size = sizeof gradients;
  gradients.q = &cdq;
  gradients.k = &cdk;
  gradients.v = &cdv;
  ASSERT_EQ(ROOTDK_OK, rootdk_attention_backward(&saved, &upstream, &gradients, nullptr, nullptr))
      << rootdk_last_error();
  attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.out = grad_out}, {.q = eq, .k = ek, .v = ev});
  expect_same_bits(dq, eq);
  expect_same_bits(dk, ek);
  expect_same_bits(dv, ev);
}

TEST_F(CApi, ErrorsCarryTheMessage) {
  rootdk_attention_params params;
  rootdk_attention_params_init(&params);
  params.temperature = 0;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("temperature 0"));

  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(nullptr, &ck, &cv, &cout, nullptr, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("q is not given"));

  rootdk_attention_params_init(&params);
  params.struct_size = 0;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("struct_size 0"));

  rootdk_attention_params_init(&params);
  params.scale_kind = 7;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("scale_kind 7"));

  rootdk_attention_params_init(&params);
  params.scale = 0.5;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("scale 0.5 is given with scale_kind 0; it needs ROOTDK_SCALE_VALUE (3)"));

  rootdk_tensor bad = cq;
  bad.rank = 99;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&bad, &ck, &cv, &cout, nullptr, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("rank 99"));
  bad = cq;
  bad.dtype = -1;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&bad, &ck, &cv, &cout, nullptr, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("dtype -1"));

  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention_backward(nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("saved is null"));
}

// A struct of an older caller ends earlier; what it lacks takes its default.
TEST_F(CApi, ShorterStructsTakeTheDefaults) {
  rootdk_attention_params params;
  rootdk_attention_params_init(&params);
  params.causal = 1;
  params.dropout = 2;  // out of range, and behind the end that this caller knows
  params.struct_size = offsetof(rootdk_attention_params, dropout);
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr)) << rootdk_last_error();
  Tensor expected(DType::f32, out.shape());
  attention(q, k, v, expected, {.causal = true});
  expect_same_bits(out, expected);
}

// A struct of a newer caller is longer; it is accepted while it does not use what it has more.
TEST_F(CApi, LongerStructsMayNotUseWhatIsNotKnown) {
  struct Newer {
    rootdk_attention_params params;
    int64_t unknown[3];
  } newer{};
  rootdk_attention_params_init(&newer.params);
  newer.params.struct_size = sizeof newer;
  EXPECT_EQ(ROOTDK_OK, rootdk_attention(&cq, &ck, &cv, &cout, &newer.params, nullptr, nullptr)) << rootdk_last_error();
  newer.unknown[1] = 1;
  EXPECT_EQ(ROOTDK_UNSUPPORTED, rootdk_attention(&cq, &ck, &cv, &cout, &newer.params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("a field of a newer version"));
  newer.params.struct_size = std::size_t{1} << 40;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &newer.params, nullptr, nullptr));
}

TEST_F(CApi, InitWritesNoMoreThanTheCallerHas) {
  rootdk_attention_params params;
  std::memset(&params, 0x5a, sizeof params);
  const std::size_t known = offsetof(rootdk_attention_params, kv_lengths);
  ASSERT_EQ(ROOTDK_OK, rootdk_struct_init(&params, ROOTDK_STRUCT_ATTENTION_PARAMS, known));
  EXPECT_EQ(known, params.struct_size);
  EXPECT_EQ(1.0, params.temperature);
  EXPECT_EQ(-1, params.window_right);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&params);
  for (std::size_t i = known; i < sizeof params; ++i) EXPECT_EQ(0x5a, bytes[i]) << i;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_struct_init(nullptr, ROOTDK_STRUCT_ATTENTION_PARAMS, known));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_struct_init(&params, 99, known));
  rootdk_attention_params* null = nullptr;
  rootdk_attention_params_init(null);  // left alone
}

TEST_F(CApi, KindsOfErrorsHaveTheirStatus) {
  rootdk_execution execution;
  rootdk_execution_init(&execution);
  execution.target = "abacus";
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, nullptr, nullptr, &execution));
  rootdk_tensor elsewhere[4] = {cq, ck, cv, cout};
  for (rootdk_tensor& tensor : elsewhere) tensor.device_kind = ROOTDK_CUDA, tensor.device_index = 99;
  EXPECT_EQ(ROOTDK_UNSUPPORTED,
            rootdk_attention(&elsewhere[0], &elsewhere[1], &elsewhere[2], &elsewhere[3], nullptr, nullptr, nullptr));
}

TEST_F(CApi, WorkspaceQueriesKnowTheTarget) {
  size_t bytes = 1;
  EXPECT_EQ(ROOTDK_OK, rootdk_attention_workspace_on(&cq, &ck, &cv, &cout, nullptr, nullptr, nullptr, &bytes));
  EXPECT_EQ(0u, bytes);
  rootdk_execution execution;
  rootdk_execution_init(&execution);
  execution.target = "abacus";
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT,
            rootdk_attention_workspace_on(&cq, &ck, &cv, &cout, nullptr, nullptr, &execution, &bytes));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("abacus"));
}

TEST_F(CApi, ConvertsElementTypes) {
  Tensor half(DType::bf16, q.shape());
  rootdk_tensor chalf = c_tensor(half);
  ASSERT_EQ(ROOTDK_OK, rootdk_tensor_convert(&cq, &chalf)) << rootdk_last_error();
  expect_same_bits(half, convert(q, DType::bf16));
  chalf.shape[0] = 7;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_tensor_convert(&cq, &chalf));
}

TEST_F(CApi, ErrorsBelongToTheirThread) {
  rootdk_attention(nullptr, &ck, &cv, &cout, nullptr, nullptr, nullptr);
  std::string elsewhere = "unset";
  std::thread([&] { elsewhere = rootdk_last_error(); }).join();
  EXPECT_EQ("", elsewhere);
}

TEST_F(CApi, CallerRunsTheTasks) {
  rootdk_execution execution;
  rootdk_execution_init(&execution);
  std::atomic<int> calls{0};
  execution.parallel_user = &calls;
  execution.parallel_threads = 3;
  execution.parallel_for = [](void* user, int64_t count, rootdk_task task, void* context) {
    ++*static_cast<std::atomic<int>*>(user);
    for (int64_t i = count; i-- > 0;) task(context, i);
  };
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&cq, &ck, &cv, &cout, nullptr, nullptr, &execution)) << rootdk_last_error();
  EXPECT_GE(calls, 1);
  attention(q, k, v, expected);
  expect_same_bits(out, expected);
}

TEST_F(CApi, ExplainIsJsonAndNeverFails) {
  EXPECT_THAT(rootdk_explain(&cq, &ck, &cv, &cout, nullptr, nullptr, nullptr), HasSubstr("\"name\": \"reference\""));
  const std::string bad = rootdk_explain(nullptr, &ck, &cv, &cout, nullptr, nullptr, nullptr);
  EXPECT_THAT(bad, HasSubstr("\"chosen\": \"\""));
  EXPECT_THAT(bad, HasSubstr("q is not given"));
}

TEST(CApiPositions, MatchCpp) {
  Tensor x = wave({1, 2, 3, 8}, 0.3f), out(DType::f32, {1, 2, 3, 8}), expected(DType::f32, {1, 2, 3, 8});
  const rootdk_tensor cx = c_tensor(x), cout = c_tensor(out);
  rootdk_rope_params params;
  rootdk_rope_params_init(&params);
  params.offset = 5;
  ASSERT_EQ(ROOTDK_OK, rootdk_rope(&cx, &cout, &params, nullptr)) << rootdk_last_error();
  rope(x, expected, {.offset = 5});
  expect_same_bits(out, expected);

  Tensor slopes(DType::f32, {8}), expected_slopes(DType::f32, {8});
  const rootdk_tensor cslopes = c_tensor(slopes);
  ASSERT_EQ(ROOTDK_OK, rootdk_alibi_slopes(&cslopes));
  alibi_slopes(expected_slopes);
  expect_same_bits(slopes, expected_slopes);

  int64_t bucket = -1;
  ASSERT_EQ(ROOTDK_OK, rootdk_t5_bucket(40, 1, 32, 128, &bucket));
  EXPECT_EQ(t5_bucket(40), bucket);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_t5_bucket(40, 1, 32, 128, nullptr));
}

TEST(CApiDropout, MatchesCpp) {
  const DropoutRule rule = DropoutRule::make(0.3, 77);
  for (uint32_t j = 0; j < 100; ++j) EXPECT_EQ(rule.keeps(1, 2, 3, j), rootdk_dropout_keeps(0.3, 77, 1, 2, 3, j) != 0);
}

}  // namespace
}  // namespace rootdk
