// A small model trained on the GPU follows the loss curve of the same model trained on the CPU: projections on the
// host, attention and its gradients on the target, plain gradient descent.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "conformance/cases.h"
#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 2, kLength = 150, kHeadDim = 64, kWidth = 48;
constexpr std::int64_t kRows = kBatch * kLength, kColumns = kHeads * kHeadDim;

// Row-major.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values{};
  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  double& operator()(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * columns + c)]; }
  double operator()(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * columns + c)]; }
};

Matrix random_matrix(std::int64_t rows, std::int64_t columns, double deviation, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  Matrix m(rows, columns);
  for (double& x : m.values) x = normal(random);
  return m;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  }
  return t;
}

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      for (std::int64_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}

void descend(Matrix& weights, double rate, const Matrix& gradient) {
  for (std::size_t i = 0; i < weights.values.size(); ++i) weights.values[i] -= rate * gradient.values[i];
}

// [batch x len, heads x dim] to and from [batch, heads, len, dim].
Tensor to_heads(const Matrix& m) {
  Tensor t(DType::f64, {kBatch, kHeads, kLength, kHeadDim});
  auto* to = t.values<double>().data();
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        for (std::int64_t d = 0; d < kHeadDim; ++d) *to++ = m(b * kLength + i, h * kHeadDim + d);
      }
    }
  }
  return t;
}
Matrix from_heads(const Tensor& t) {
  Matrix m(kRows, kColumns);
  const auto* from = t.values<double>().data();
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        for (std::int64_t d = 0; d < kHeadDim; ++d) m(b * kLength + i, h * kHeadDim + d) = *from++;
      }
    }
  }
  return m;
}

// What the loss was before every step. The task: reproduce a layer with other weights.
std::vector<double> loss_curve(const Target& target, const CaseSpec& features, int steps) {
  const Matrix x = random_matrix(kRows, kWidth, 1, 1);
  Matrix w_q = random_matrix(kWidth, kColumns, 0.2, 2), w_k = random_matrix(kWidth, kColumns, 0.2, 3);
  Matrix w_v = random_matrix(kWidth, kColumns, 0.15, 4);
  AttentionCase problem = make_case(features, DType::f64);
  const auto set_inputs = [&](const Matrix& q, const Matrix& k, const Matrix& v) {
    problem.q = DataTensor(to_heads(q), false);
    problem.k = DataTensor(to_heads(k), false);
    problem.v = DataTensor(to_heads(v), false);
  };
  set_inputs(x * random_matrix(kWidth, kColumns, 0.2, 5), x * random_matrix(kWidth, kColumns, 0.2, 6),
             x * random_matrix(kWidth, kColumns, 0.15, 7));
  const Matrix wanted = from_heads(run_forward(problem, {.name = "reference"}, Statistics::rows).at("out"));

  constexpr double kRate = 20;
  const Matrix x_transposed = transposed(x);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    set_inputs(x * w_q, x * w_k, x * w_v);
    const Results forward = run_forward(problem.converted(DType::bf16), target, Statistics::rows);
    Matrix grad_out = from_heads(forward.at("out"));
    double loss = 0;
    const auto count = static_cast<double>(kRows * kColumns);
    for (std::size_t i = 0; i < grad_out.values.size(); ++i) {
      const double difference = grad_out.values[i] - wanted.values[i];
      loss += difference * difference / count;
      grad_out.values[i] = 2 * difference / count;
    }
    losses.push_back(loss);
    problem.grad_out = DataTensor(to_heads(grad_out), false);
    const Results gradients = run_backward(problem.converted(DType::bf16), forward, target);
    descend(w_q, kRate, x_transposed * from_heads(gradients.at("grad_q")));
    descend(w_k, kRate, x_transposed * from_heads(gradients.at("grad_k")));
    descend(w_v, kRate, x_transposed * from_heads(gradients.at("grad_v")));
  }
  return losses;
}

void expect_same_curve(const Target& target, const CaseSpec& features) {
  SCOPED_TRACE(target.name + " " + features.name);
  constexpr int kSteps = 40;
  const std::vector<double> expected = loss_curve({}, features, kSteps), actual = loss_curve(target, features, kSteps);
  EXPECT_LT(expected.back(), 0.5 * expected.front()) << "the model does not learn";
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(actual[step], expected[step], 0.02 * expected[step]) << "step " << step;
  }
}

class Training : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

CaseSpec features(const char* name) {
  CaseSpec spec{
      .name = name, .batch = kBatch, .heads = kHeads, .q_len = kLength, .kv_len = kLength, .head_dim = kHeadDim};
  spec.scalars.causal = true;
  return spec;
}

TEST_F(Training, FollowsTheCurveOfTheCpu) {
  for (const char* name : {"sm90", "sm80"}) {
    const Target target{.name = name, .memory = &cuda_memory()};
    expect_same_curve(target, features("causal"));
    CaseSpec dropped = features("dropout");
    dropped.scalars.dropout = 0.1;
    expect_same_curve(target, dropped);
  }
}

}  // namespace
}  // namespace rootdk::test
