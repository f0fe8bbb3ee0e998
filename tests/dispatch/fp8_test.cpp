// Attention in e4m3: the reference against plain loops, the CPU against the reference on every case of the conformance
// grid, the gradient against that of the values, and how far off the result is.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "conformance/fp8.h"
#include "core/fp8_values.h"
#include "support/error_of.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

const Target kCpu{.name = "fp8_cpu"};

class Fp8Types : public testing::TestWithParam<DType> {};

TEST_P(Fp8Types, TheCpuComputesWhatTheReferenceComputes) {
  const ConformanceReport report = expect_fp8_conformance(kCpu, GetParam());
  EXPECT_GT(report.forward_runs, 50);
  EXPECT_TRUE(report.refused.empty());
}

INSTANTIATE_TEST_SUITE_P(Fp8, Fp8Types, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// rootdk/fp8.h once more, in the plainest loops: one head, one sequence, no options.
TEST(Fp8, TheReferenceIsTheSpecification) {
  constexpr std::int64_t kRows = 40, kKeys = 300, kDim = 16;
  const Tensor q = random_tensor(DType::f32, {1, 1, kRows, kDim}, 1, 2.0);
  Tensor k = random_tensor(DType::f32, {1, 1, kKeys, kDim}, 2);
  const Tensor v = random_tensor(DType::f32, {1, 1, kKeys, kDim}, 3);
  for (float& x : k.values<float>()) x += 3;
  Tensor out(DType::f32, {1, 1, kRows, kDim}), lse(DType::f32, {1, 1, kRows});
  attention(q, k, v, out, {.compute = DType::f8e4m3}, {.lse = lse}, {.target = "reference"});

  const QuantizedTensors t = quantize_for_attention(q, k, v);
  const auto number = [](const Tensor& x, std::int64_t row, std::int64_t d) {
    return static_cast<double>(static_cast<float>(x.values<Float8E4M3>()[static_cast<std::size_t>(row * kDim + d)]));
  };
  const auto scale = [](const Tensor& x, std::int64_t i) {
    return static_cast<double>(x.values<float>()[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t i = 0; i < kRows; ++i) {
    std::vector<double> s(kKeys);
    double m = -1e300, sum = 0;
    for (std::int64_t j = 0; j < kKeys; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < kDim; ++d) dot += number(t.q, i, d) * number(t.k, j, d);
      s[static_cast<std::size_t>(j)] = dot * scale(t.q_scales, 0) * scale(t.k_scales, j / 128) / 4;
      m = std::max(m, s[static_cast<std::size_t>(j)]);
    }
    for (const double x : s) sum += std::exp(x - m);
    EXPECT_NEAR(scale(lse, i), m + std::log(sum) + scale(t.q_shift, i) / 4, 1e-4);
    for (std::int64_t d = 0; d < kDim; ++d) {
      double o = 0;
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const Float8E4M3 p(256 * std::exp(s[static_cast<std::size_t>(j)] - m));
        o += static_cast<double>(static_cast<float>(p)) * number(t.v, j, d);
      }
      EXPECT_NEAR(scale(out, i * kDim + d), o / 256 / sum * scale(t.v_scales, d), 1e-6);
    }
  }
}

TEST(Fp8, NumbersAndScalesGiveTheBitsOfTheirOriginals) {
  const Tensor q = random_tensor(DType::bf16, {2, 4, 150, 32}, 1);
  const Tensor k = random_tensor(DType::bf16, {2, 2, 140, 32}, 2), v = random_tensor(DType::bf16, {2, 2, 140, 24}, 3);
  const QuantizedTensors t = quantize_for_attention(q, k, v);
  for (const char* target : {"reference", "fp8_cpu"}) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      Tensor out(type, {2, 4, 150, 24}), lse(DType::f32, {2, 4, 150});
      attention(t.q, t.k, t.v, out, {.causal = true, .fp8 = t.scales()}, {.lse = lse}, {.target = target});
      if (type != DType::bf16) continue;
      Tensor direct(type, {2, 4, 150, 24}), direct_lse(DType::f32, {2, 4, 150});
      attention(q, k, v, direct, {.causal = true, .compute = DType::f8e4m3}, {.lse = direct_lse}, {.target = target});
      EXPECT_EQ(std::memcmp(out.view().data, direct.view().data, out.bytes()), 0);
      EXPECT_EQ(std::memcmp(lse.view().data, direct_lse.view().data, lse.bytes()), 0);
    }
  }
}

double relative_norm(const Tensor& exact, const Tensor& found) {
  const auto a = doubles(exact), b = doubles(found);
  double error = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += a[i] * a[i];
  }
  return std::sqrt(error / size);
}

enum class Keys { normal, outlier, offset };

// The norm of the error relative to the exact result, 256 rows of head_dim 128.
double error_of_keys(Keys kind, std::int64_t keys, bool rotate, std::string_view target) {
  constexpr std::int64_t kRows = 256, kDim = 128;
  const Tensor q = random_tensor(DType::f32, {1, 1, kRows, kDim}, 1),
               v = random_tensor(DType::f32, {1, 1, keys, kDim}, 3);
  Tensor k = random_tensor(DType::f32, {1, 1, keys, kDim}, 2);
  const Tensor offset = random_tensor(DType::f32, {kDim}, 4, 4.0);
  for (std::size_t i = 0; i < k.values<float>().size(); ++i) {
    if (kind == Keys::outlier && i % kDim == 5) k.values<float>()[i] *= 20;
    if (kind == Keys::offset) k.values<float>()[i] += offset.values<float>()[i % kDim];
  }
  Tensor exact(DType::f64, {1, 1, kRows, kDim}), out(DType::f32, {1, 1, kRows, kDim});
  attention(convert(q, DType::f64), convert(k, DType::f64), convert(v, DType::f64), exact);
  attention(q, k, v, out, {.compute = DType::f8e4m3, .fp8 = {.rotate = rotate}}, {}, {.target = target});
  double error = 0, size = 0;
  for (std::size_t i = 0; i < out.values<float>().size(); ++i) {
    const double x = exact.values<double>()[i];
    error += (out.values<float>()[i] - x) * (out.values<float>()[i] - x);
    size += x * x;
  }
  return std::sqrt(error / size);
}

TEST(Fp8, TheErrorStaysWhereItWasMeasured) {
  // docs/fp8.md has these figures.
  EXPECT_LT(error_of_keys(Keys::normal, 2048, false, "reference"), 0.056);
  EXPECT_LT(error_of_keys(Keys::outlier, 2048, false, "reference"), 0.105);
  EXPECT_LT(error_of_keys(Keys::offset, 2048, false, "reference"), 0.058);
  EXPECT_LT(error_of_keys(Keys::normal, 2048, true, "reference"), 0.056);
  EXPECT_LT(error_of_keys(Keys::normal, 2048, false, "fp8_cpu"), 0.056);
  EXPECT_LT(error_of_keys(Keys::offset, 2048, false, "fp8_cpu"), 0.058);
}

// Weights that are not rounded would be 0.026 off, and those of another maximum, too: one tile has one.
TEST(Fp8, TheCpuRoundsWeightsAsTheReferenceDoes) {
  const Tensor q = random_tensor(DType::f32, {1, 1, 100, 64}, 1), k = random_tensor(DType::f32, {1, 1, 120, 64}, 2),
               v = random_tensor(DType::f32, {1, 1, 120, 64}, 3);
  Tensor expected(DType::f32, q.shape()), found(DType::f32, q.shape());
  attention(q, k, v, expected, {.compute = DType::f8e4m3}, {}, {.target = "reference"});
  attention(q, k, v, found, {.compute = DType::f8e4m3}, {}, {.target = "fp8_cpu"});
  EXPECT_LT(relative_norm(expected, found), 1e-3);
}

// Of 131072 keys each query has one with a logit of 8, whose value its output must be nearest to.
TEST(Fp8, FindsANeedleAmong131072Keys) {
  constexpr std::int64_t kKeys = 131072, kRows = 16, kDim = 64;
  const Tensor q = random_tensor(DType::f32, {1, 1, kRows, kDim}, 1),
               v = random_tensor(DType::f32, {1, 1, kKeys, kDim}, 3);
  Tensor k = random_tensor(DType::f32, {1, 1, kKeys, kDim}, 2), out(DType::f32, q.shape());
  const auto place = [](std::int64_t row) { return static_cast<std::size_t>((row * 8191 + 77) % kKeys); };
  const auto row_of = [](const Tensor& x, std::size_t row) { return x.values<float>().subspan(row * kDim, kDim); };
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto query = row_of(q, static_cast<std::size_t>(r));
    double square = 0;
    for (const float x : query) square += static_cast<double>(x) * x;
    for (std::size_t d = 0; d < kDim; ++d) {
      k.values<float>()[place(r) * kDim + d] = static_cast<float>(8 * std::sqrt(kDim) / square * query[d]);
    }
  }
  attention(q, k, v, out, {.compute = DType::f8e4m3});
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::int64_t nearest = -1;
    double best = -1e300;
    for (std::int64_t other = 0; other < kRows; ++other) {
      double dot = 0;
      for (std::size_t d = 0; d < kDim; ++d) {
        dot += static_cast<double>(row_of(out, static_cast<std::size_t>(r))[d]) * row_of(v, place(other))[d];
      }
      if (dot > best) nearest = other;
      best = std::max(best, dot);
    }
    EXPECT_EQ(nearest, r);
  }
}

TEST(Fp8, LseAndMaxLogitAreThoseOfTheKeysWithTheirMean) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 64, 64}, 1), v = random_tensor(DType::f32, {1, 1, 200, 64}, 3);
  Tensor k = random_tensor(DType::f32, {1, 1, 200, 64}, 2);
  for (float& x : k.values<float>()) x += 30;
  Tensor out(DType::f32, {1, 2, 64, 64}), lse(DType::f32, {1, 2, 64}), top(DType::f32, {1, 2, 64});
  attention(q, k, v, out, {.causal = true}, {.lse = lse, .max_logit = top});
  for (const char* target : {"reference", "fp8_cpu"}) {
    Tensor lse8(DType::f32, {1, 2, 64}), top8(DType::f32, {1, 2, 64});
    attention(q, k, v, out, {.causal = true, .compute = DType::f8e4m3}, {.lse = lse8, .max_logit = top8},
              {.target = target});
    EXPECT_LT(difference(lse, lse8).largest, 0.2);
    EXPECT_LT(difference(top, top8).largest, 0.3);
    EXPECT_GT(difference(lse, lse8).magnitude, 50);  // most of it is the mean
  }
}

// Plain tensors of a backward call.
struct Gradients {
  Tensor q, k, v;
};
Gradients gradients_of(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                       const Tensor& grad_lse) {
  Tensor out(q.dtype(), q.shape()), lse(DType::f32, q.shape().first(3));
  attention(q, k, v, out, params, {.lse = lse});
  const Tensor grad_out = random_tensor(q.dtype(), {q.shape().begin(), q.shape().end()}, 9);
  Gradients g{.q = Tensor(q.dtype(), q.shape()), .k = Tensor(k.dtype(), k.shape()), .v = Tensor(v.dtype(), v.shape())};
  attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.out = grad_out, .lse = grad_lse},
                     {.q = g.q, .k = g.k, .v = g.v}, params);
  return g;
}

// The keys have a large mean, and lse has a gradient, which reaches q through the mean.
TEST(Fp8, TheGradientIsNearThatOfTheOriginals) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const bool rotate : {false, true}) {
      const Tensor q = random_tensor(type, {1, 4, 130, 32}, 1), v = random_tensor(type, {1, 2, 150, 32}, 3);
      Tensor wide = random_tensor(DType::f32, {1, 2, 150, 32}, 2);
      for (float& x : wide.values<float>()) x += 5;
      const Tensor k = convert(wide, type), grad_lse = random_tensor(DType::f32, {1, 4, 130}, 8);
      const Gradients exact = gradients_of(q, k, v, {.causal = true}, grad_lse);
      const Gradients found =
          gradients_of(q, k, v, {.causal = true, .compute = DType::f8e4m3, .fp8 = {.rotate = rotate}}, grad_lse);
      EXPECT_LT(relative_norm(exact.q, found.q), 0.04);
      EXPECT_LT(relative_norm(exact.k, found.k), 0.08);
      EXPECT_LT(relative_norm(exact.v, found.v), 0.08);
    }
  }
}

// Straight through: exactly the backward pass of f32 on the values of the numbers, with the output and the lse of the
// forward pass.
TEST(Fp8, TheGradientIsThatOfTheValues) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 60, 32}, 1), k = random_tensor(DType::f32, {1, 2, 70, 32}, 2),
               v = random_tensor(DType::f32, {1, 2, 70, 32}, 3),
               grad_out = random_tensor(DType::f32, {1, 2, 60, 32}, 4);
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 2, 60});
  const AttentionParams fp8{.compute = DType::f8e4m3};
  attention(q, k, v, out, fp8, {.lse = lse});
  Gradients found, expected;
  for (Gradients* g : {&found, &expected}) {
    *g = {.q = Tensor(DType::f32, q.shape()), .k = Tensor(DType::f32, k.shape()), .v = Tensor(DType::f32, v.shape())};
  }
  attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.out = grad_out},
                     {.q = found.q, .k = found.k, .v = found.v}, fp8);

  QuantizedTensors t = quantize_for_attention(q, k, v);
  const AttentionShape shape{
      .batch = 1, .heads = 2, .kv_heads = 2, .q_len = 60, .kv_len = 70, .head_dim = 32, .value_dim = 32};
  const Fp8Values values = values_of(t.views(), shape, {}, DType::f32, default_executor());
  for (std::size_t i = 0; i < lse.values<float>().size(); ++i) {
    lse.values<float>()[i] -= t.q_shift.values<float>()[i] / std::sqrt(32.0f);
  }
  attention_backward({.q = values.q, .k = values.k, .v = values.v, .out = out, .lse = lse}, {.out = grad_out},
                     {.q = expected.q, .k = expected.k, .v = expected.v});
  EXPECT_LT(difference(expected.q, found.q).relative(), 1e-5);
  EXPECT_LT(difference(expected.k, found.k).relative(), 1e-5);
  EXPECT_LT(difference(expected.v, found.v).relative(), 1e-5);
}

TEST(Fp8, ExplainSaysWhatRuns) {
  const Tensor x = random_tensor(DType::bf16, {1, 1, 8, 16}, 1);
  Tensor out(DType::bf16, {1, 1, 8, 16});
  const AttentionParams params{.compute = DType::f8e4m3};
  EXPECT_EQ(explain(x, x, x, out, params).chosen, "fp8_cpu");
  EXPECT_EQ(explain(x, x, x, out, params, {}, {.target = "reference"}).chosen, "reference");
  EXPECT_NE(explain(x, x, x, out).chosen, "fp8_cpu");
  // A target of other calls is that of the kernels below.
  EXPECT_EQ(explain(x, x, x, out, params, {}, {.target = "baseline"}).chosen, "fp8_cpu");
  EXPECT_NE(error_of([&] { attention(x, x, x, out, params, {}, {.target = "abacus"}); }).find("no target abacus"),
            std::string::npos);
  ConstTensorView on_gpu = x;
  on_gpu.device = {.kind = DeviceKind::cuda};
  TensorView out_on_gpu = out;
  out_on_gpu.device = on_gpu.device;
  const Explanation refused = explain(on_gpu, on_gpu, on_gpu, out_on_gpu, params);
  if (refused.chosen.empty()) {
    EXPECT_NE(refused.error.find("CUDA"), std::string::npos);
  }
}

TEST(Fp8, RefusesWhatMakesNoSense) {
  const Tensor x = random_tensor(DType::bf16, {1, 1, 8, 16}, 1);
  Tensor out(DType::bf16, {1, 1, 8, 16});
  const auto error = [&](const AttentionParams& params) { return error_of([&] { attention(x, x, x, out, params); }); };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(error({.compute = DType::f16}), "compute f16 is neither f8e4m3 nor the type of q, bf16");
  expect(error({.score = Score::cosine, .compute = DType::f8e4m3}), "the score is cosine");
  expect(error({.fp8 = {.rotate = true}}), "fp8.rotate needs compute f8e4m3");
  EXPECT_EQ(error({.compute = DType::bf16}), "no error");

  QuantizedTensors t = quantize_for_attention(x, x, x);
  expect(error({.fp8 = t.scales()}), "scales in fp8 belong to q, k and v in f8e4m3, and q is bf16");
  expect(error_of([&] { attention(t.q, t.k, t.v, out); }), "fp8.q_scales is not given");
  Fp8Params scales = t.scales();
  scales.v_scales = scales.k_scales;
  expect(error_of([&] { attention(t.q, t.k, t.v, out, {.fp8 = scales}); }), "fp8.v_scales is f32 [1, 1, 1]");
  expect(error_of([&] { attention(t.q, t.k, t.v, t.views().q, {.fp8 = t.scales()}); }), "out has type f8e4m3");
  const Tensor wide = convert(x, DType::f64);
  Tensor wide_out(DType::f64, {1, 1, 8, 16});
  expect(error_of([&] { attention(wide, wide, wide, wide_out, {.compute = DType::f8e4m3}); }), "it is f64");
  Tensor lse(DType::f32, {1, 1, 8});
  expect(error_of([&] {
           attention_backward({.q = t.q, .k = t.k, .v = t.v, .out = out, .lse = lse}, {.out = x}, {},
                              {.fp8 = t.scales()});
         }),
         "saved.q is f8e4m3");
}

}  // namespace
}  // namespace rootdk::test
