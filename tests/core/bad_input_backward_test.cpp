// Bad arguments of attention_backward(): each row breaks one thing and checks the message.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "rootdk/attention.h"
#include "rootdk/error.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

// A valid call: batch 1, heads 4 over 2, q_len 3, kv_len 5, head_dim 8, value_dim 6.
struct Call {
  std::vector<Tensor> memory;
  AttentionSaved saved;
  AttentionUpstream upstream;
  AttentionGradients gradients;
  AttentionParams params;

  Call() {
    memory.reserve(32);
    saved = {.q = make(DType::f32, 1, 4, 3, 8),
             .k = make(DType::f32, 1, 2, 5, 8),
             .v = make(DType::f32, 1, 2, 5, 6),
             .out = make(DType::f32, 1, 4, 3, 6),
             .lse = make(DType::f32, 1, 4, 3),
             .entropy = {}};
    upstream.out = make(DType::f32, 1, 4, 3, 6);
    gradients.q = make(DType::f32, 1, 4, 3, 8);
    gradients.k = make(DType::f32, 1, 2, 5, 8);
    gradients.v = make(DType::f32, 1, 2, 5, 6);
  }
  template <class... Sizes>
  TensorView make(DType dtype, Sizes... sizes) {
    memory.emplace_back(dtype, Shape{sizes...});
    return memory.back();
  }
  void run() { attention_backward(saved, upstream, gradients, params); }
};

struct Row {
  const char* name;
  std::function<void(Call&)> spoil;
  const char* message;
};

const Row kRows[] = {
    {"NoQ", [](Call& c) { c.saved.q = {}; }, "q is not given"},
    {"NoOut", [](Call& c) { c.saved.out = {}; }, "saved.out is not given"},
    {"NoUpstream", [](Call& c) { c.upstream.out = {}; }, "upstream.out is not given"},
    {"OutShape", [](Call& c) { c.saved.out = c.make(DType::f32, 1, 4, 3, 8); },
     "saved.out is f32 [1, 4, 3, 8], expected [1, 4, 3, 6]"},
    {"UpstreamType", [](Call& c) { c.upstream.out = c.make(DType::bf16, 1, 4, 3, 6); },
     "upstream.out is bf16 but q is f32"},
    {"NoLse", [](Call& c) { c.saved.lse = {}; }, "saved.lse is not given (ask the forward for stats.lse)"},
    {"LseShape", [](Call& c) { c.saved.lse = c.make(DType::f32, 1, 4, 5); },
     "saved.lse is f32 [1, 4, 5], expected [1, 4, 3]"},
    {"UpstreamLseShape", [](Call& c) { c.upstream.lse = c.make(DType::f32, 4, 3); },
     "upstream.lse has rank 2, expected 3"},
    {"EntropyWithoutSaved", [](Call& c) { c.upstream.entropy = c.make(DType::f32, 1, 4, 3); },
     "upstream.entropy needs saved.entropy (ask the forward for stats.entropy)"},
    {"GradientShape", [](Call& c) { c.gradients.k = c.make(DType::f32, 1, 4, 5, 8); },
     "gradients.k is f32 [1, 4, 5, 8] but k is f32 [1, 2, 5, 8]"},
    {"GradientType", [](Call& c) { c.gradients.q = c.make(DType::f64, 1, 4, 3, 8); },
     "gradients.q has type f64, expected f32"},
    {"GradientOverlap", [](Call& c) { c.gradients.v.strides[1] = 0; }, "the strides of gradients.v overlap: stride 0"},
    {"GradientLastStride",
     [](Call& c) {
       c.gradients.k.shape = c.saved.k.shape, c.gradients.k.strides = {160, 80, 16, 2};
     },
     "the last dimension of gradients.k has stride 2, expected 1"},
    {"GradientIsUpstream",
     [](Call& c) {
       c.saved.v = c.make(DType::f32, 1, 2, 5, 8), c.saved.out = c.make(DType::f32, 1, 4, 3, 8);
       c.gradients.v = c.make(DType::f32, 1, 2, 5, 8), c.upstream.out = c.gradients.q;
     },
     "gradients.q and upstream.out begin at the same address"},
    {"GradientDevice",
     [](Call& c) {
       c.gradients.v.device = {DeviceKind::cuda, 0};
     },
     "gradients.v lies on cuda:0 but v lies on cpu"},
    {"BiasNotGiven", [](Call& c) { c.gradients.bias = c.make(DType::f32, 1, 1, 3, 5); },
     "gradients.bias is asked for but bias is not given"},
    {"SinksNotGiven", [](Call& c) { c.gradients.sinks = c.make(DType::f32, 4); },
     "gradients.sinks is asked for but sinks is not given"},
    {"BiasGradientShape",
     [](Call& c) {
       c.params.bias = c.make(DType::f32, 1, 1, 3, 5);
       c.gradients.bias = c.make(DType::f32, 1, 4, 3, 5);
     },
     "gradients.bias is f32 [1, 4, 3, 5] but bias is f32 [1, 1, 3, 5]"},
    {"ColumnMassShape", [](Call& c) { c.gradients.column_mass = c.make(DType::f32, 1, 4, 3); },
     "gradients.column_mass is f32 [1, 4, 3], expected [1, 4, 5]"},
    {"Temperature", [](Call& c) { c.params.logits.temperature = -1; }, "temperature -1 must be positive and finite"},
};

class BadBackwardInput : public testing::TestWithParam<Row> {};

TEST_P(BadBackwardInput, NamesTheValuesAndWritesNothing) {
  Call call;
  const TensorView q_gradient = call.gradients.q;
  for (std::int64_t n = 0; n < 96; ++n) q_gradient.as<float>()[n] = 42;
  GetParam().spoil(call);
  try {
    call.run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().message));
    EXPECT_THAT(error.what(), testing::StartsWith("attention_backward: "));
  }
  for (std::int64_t n = 0; n < 96; ++n) EXPECT_EQ(q_gradient.as<float>()[n], 42);
  const Explanation explanation = explain_backward(call.saved, call.upstream, call.gradients, call.params);
  EXPECT_TRUE(explanation.chosen.empty());
  EXPECT_THAT(explanation.error, testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(AttentionBackward, BadBackwardInput, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

TEST(GoodBackwardInput, TheCallBehindTheTableRuns) {
  Call call;
  EXPECT_NO_THROW(call.run());
}

}  // namespace
}  // namespace rootdk::test
