#include <gtest/gtest.h>

#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

constexpr TransformerXlParams kParams{.scale = 0.7, .zero = 2};

struct Problem {
  Tensor q = random_tensor(DType::f64, {2, 2, 3, 4}, 1), v_bias = random_tensor(DType::f64, {2, 4}, 2);
  Tensor r = random_tensor(DType::f64, {2, 5, 4}, 3), grad = random_tensor(DType::f64, {2, 2, 3, 6}, 4);

  Tensor bias() const {
    Tensor result(DType::f64, {2, 2, 3, 6});
    transformer_xl_bias(q, v_bias, r, result, kParams);
    return result;
  }
  double loss() const {
    const std::vector<double> b = doubles(bias()), g = doubles(grad);
    double sum = 0;
    for (std::size_t n = 0; n < b.size(); ++n) sum += b[n] * g[n];
    return sum;
  }
};

// Query i stands at i + 3; distances -2 to 2 have entries.
TEST(TransformerXl, Formula) {
  const Problem p;
  const std::vector<double> bias = doubles(p.bias()), q = doubles(p.q), v = doubles(p.v_bias), r = doubles(p.r);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 6; ++j) {
        const int entry = i + 3 - j + 2;
        double expected = 0;
        for (int d = 0; d < 4 && entry >= 0 && entry < 5; ++d) {
          expected += (q[static_cast<std::size_t>((h * 3 + i) * 4 + d)] + v[static_cast<std::size_t>(h * 4 + d)]) *
                      r[static_cast<std::size_t>((h * 5 + entry) * 4 + d)] * 0.7;
        }
        EXPECT_NEAR(bias[static_cast<std::size_t>((h * 3 + i) * 6 + j)], expected, 1e-14);
      }
    }
  }
}

TEST(TransformerXl, GradientsEqualCentralDifferences) {
  Problem p;
  Tensor dq(DType::f64, {2, 2, 3, 4}), dv(DType::f64, {2, 4}), dr(DType::f64, {2, 5, 4});
  transformer_xl_bias_backward(p.q, p.v_bias, p.r, p.grad, dq, dv, dr, kParams);
  for (auto [tensor, gradient] : {std::pair{&p.q, &dq}, std::pair{&p.v_bias, &dv}, std::pair{&p.r, &dr}}) {
    for (std::size_t n = 0; n < tensor->values<double>().size(); ++n) {
      double& x = tensor->values<double>()[n];
      const double kept = x;
      x = kept + 1e-4;
      const double above = p.loss();
      x = kept - 1e-4;
      const double below = p.loss();
      x = kept;
      EXPECT_NEAR(gradient->values<double>()[n], (above - below) / 2e-4, 1e-9);
    }
  }
}

}  // namespace
}  // namespace rootdk::test
