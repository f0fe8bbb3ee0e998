// Attention in e4m3 through the C ABI: the bits of the C++ API, and messages for what makes no sense.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "c_api/c_tensor.h"
#include "rootdk/rootdk.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

struct CApiFp8 : testing::Test {
  Tensor q = wave({2, 4, 5, 8}, 0.31f), k = wave({2, 2, 7, 8}, 0.17f), v = wave({2, 2, 7, 6}, 0.23f);
  Tensor out{DType::f32, {2, 4, 5, 6}}, expected{DType::f32, {2, 4, 5, 6}};
  rootdk_tensor cq = c_tensor(q), ck = c_tensor(k), cv = c_tensor(v), cout = c_tensor(out);
  rootdk_attention_params params{};

  void SetUp() override { rootdk_attention_params_init(&params); }
};

TEST_F(CApiFp8, ComputeMatchesCpp) {
  params.compute = ROOTDK_COMPUTE_F8E4M3;
  params.rotate = 1;
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr)) << rootdk_last_error();
  attention(q, k, v, expected, {.compute = DType::f8e4m3, .fp8 = {.rotate = true}});
  expect_same_bits(out, expected);
  EXPECT_THAT(rootdk_explain(&cq, &ck, &cv, &cout, &params, nullptr, nullptr), HasSubstr("\"chosen\": \"fp8_cpu\""));
}

TEST_F(CApiFp8, NumbersMatchCpp) {
  QuantizedTensors numbers = quantize_for_attention(q, k, v), found = quantize_for_attention(v, v, v);
  found.q = Tensor(DType::f8e4m3, {2, 4, 5, 8});
  found.k = Tensor(DType::f8e4m3, {2, 2, 7, 8});
  found.v = Tensor(DType::f8e4m3, {2, 2, 7, 6});
  found.q_scales = Tensor(DType::f32, {2, 4, 1});
  found.q_shift = Tensor(DType::f32, {2, 4, 5});
  const rootdk_tensor q8 = c_tensor(found.q), k8 = c_tensor(found.k), v8 = c_tensor(found.v);
  const rootdk_tensor q_scales = c_tensor(found.q_scales), k_scales = c_tensor(found.k_scales),
                      v_scales = c_tensor(found.v_scales), q_shift = c_tensor(found.q_shift);
  rootdk_quantized to;
  rootdk_quantized_init(&to);
  to.q = &q8;
  to.k = &k8;
  to.v = &v8;
  to.q_scales = &q_scales;
  to.k_scales = &k_scales;
  to.v_scales = &v_scales;
  to.q_shift = &q_shift;
  std::size_t bytes = 1;
  ASSERT_EQ(ROOTDK_OK, rootdk_quantize_for_attention_workspace(&cq, &ck, &cv, &to, nullptr, nullptr, &bytes));
  EXPECT_EQ(bytes, 0u);
  ASSERT_EQ(ROOTDK_OK, rootdk_quantize_for_attention(&cq, &ck, &cv, &to, nullptr, nullptr)) << rootdk_last_error();
  expect_same_bits(found.q, numbers.q);
  expect_same_bits(found.k, numbers.k);
  expect_same_bits(found.v, numbers.v);
  expect_same_bits(found.v_scales, numbers.v_scales);
  expect_same_bits(found.q_shift, numbers.q_shift);

  params.q_scales = &q_scales;
  params.k_scales = &k_scales;
  params.v_scales = &v_scales;
  params.q_shift = &q_shift;
  ASSERT_EQ(ROOTDK_OK, rootdk_attention(&q8, &k8, &v8, &cout, &params, nullptr, nullptr)) << rootdk_last_error();
  attention(numbers.q, numbers.k, numbers.v, expected, {.fp8 = numbers.scales()});
  expect_same_bits(out, expected);
}

TEST_F(CApiFp8, BadArguments) {
  params.compute = 7;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_STREQ(rootdk_last_error(), "c_api: compute 7 is neither as q (0) nor f8e4m3 (1)");
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_quantize_for_attention(&cq, &ck, &cv, nullptr, nullptr, nullptr));
  EXPECT_STREQ(rootdk_last_error(), "c_api: to is null");
  rootdk_quantized to;
  rootdk_quantized_init(&to);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_quantize_for_attention(&cq, &ck, &cv, &to, nullptr, nullptr));
  EXPECT_STREQ(rootdk_last_error(), "quantize_for_attention: to.q is not given");
  params.compute = ROOTDK_COMPUTE_F8E4M3;
  params.score = ROOTDK_COSINE;
  EXPECT_EQ(ROOTDK_UNSUPPORTED, rootdk_attention(&cq, &ck, &cv, &cout, &params, nullptr, nullptr));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("the score is cosine"));
}

}  // namespace
}  // namespace rootdk
