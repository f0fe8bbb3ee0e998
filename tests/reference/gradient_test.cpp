// Every gradient of the reference against central differences in f64.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "conformance/cases.h"

namespace rootdk::test {
namespace {

const Target kReference{.name = "reference"};

double inner_product(const ConstTensorView& a, const ConstTensorView& b) {
  const std::vector<double> x = doubles(a), y = doubles(b);
  double sum = 0;
  for (std::size_t n = 0; n < x.size(); ++n) sum += x[n] * y[n];
  return sum;
}

// The loss whose gradients flow in: out . grad_out + lse . grad_lse + entropy . grad_entropy.
double loss(const AttentionCase& c) {
  Results forward = run_forward(c, kReference, Statistics::rows);
  for (double& lse : forward.at("lse").values<double>()) lse = std::isinf(lse) ? 0 : lse;
  double sum = inner_product(forward.at("out"), c.grad_out.view());
  if (c.grad_lse.defined()) sum += inner_product(forward.at("lse"), c.grad_lse);
  if (c.grad_entropy.defined()) sum += inner_product(forward.at("entropy"), c.grad_entropy);
  return sum;
}

struct Variable {
  const char* gradient;
  std::function<Tensor&(AttentionCase&)> tensor;
};

const Variable kVariables[] = {
    {"grad_q", [](AttentionCase& c) -> Tensor& { return c.q.memory(); }},
    {"grad_k", [](AttentionCase& c) -> Tensor& { return c.k.memory(); }},
    {"grad_v", [](AttentionCase& c) -> Tensor& { return c.v.memory(); }},
    {"grad_bias", [](AttentionCase& c) -> Tensor& { return c.bias; }},
    {"grad_relative_table", [](AttentionCase& c) -> Tensor& { return c.relative_table; }},
    {"grad_alibi_slopes", [](AttentionCase& c) -> Tensor& { return c.alibi_slopes; }},
    {"grad_sinks", [](AttentionCase& c) -> Tensor& { return c.sinks; }},
    {"grad_additive_v", [](AttentionCase& c) -> Tensor& { return c.additive_v; }},
};

// Small sizes, so that every element of every tensor is moved.
CaseSpec small(CaseSpec spec) {
  spec.batch = spec.q_starts.empty() ? 2 : 1;
  spec.heads = 4;
  spec.kv_heads = 2;
  if (spec.q_starts.empty()) spec.q_len = 4, spec.kv_len = 5;
  spec.head_dim = 3;
  spec.value_dim = 2;
  return spec;
}

std::vector<CaseSpec> specs() {
  std::vector<CaseSpec> all;
  auto add = [&](CaseSpec spec, auto edit) {
    edit(spec.scalars);
    // Once with the gradient of out alone, once with those of lse and entropy.
    all.push_back(small(spec));
    spec.name += "_lse_entropy";
    spec.grad_lse = spec.grad_entropy = true;
    all.push_back(small(spec));
  };
  using P = AttentionParams;
  add({.name = "plain"}, [](P&) {});
  add({.name = "causal"}, [](P& p) { p.causal = true; });
  add({.name = "window"}, [](P& p) { p.window_left = 1, p.window_right = 1; });
  add({.name = "temperature"}, [](P& p) { p.logits.scale = 0.7, p.logits.temperature = 1.3; });
  add({.name = "softcap"}, [](P& p) { p.logits.softcap = 1.5; });
  add({.name = "cosine"}, [](P& p) { p.score = Score::cosine, p.logits.scale = 3.0; });
  add({.name = "cosine_softcap"}, [](P& p) { p.score = Score::cosine, p.logits.scale = 3.0, p.logits.softcap = 2; });
  add({.name = "additive"}, [](P& p) { p.score = Score::additive, p.logits.scale = Scale::none(); });
  add({.name = "additive_softcap"}, [](P& p) { p.score = Score::additive, p.logits.softcap = 1; });
  add({.name = "kv_lengths", .kv_lengths = {3, 0}}, [](P&) {});
  add({.name = "mask", .mask = {2, 4, 4, 5}, .mask_keep = 0.5}, [](P&) {});
  add({.name = "block_mask", .block_mask = {2, 1, 2, 3}, .mask_keep = 0.5}, [](P& p) { p.block_q = p.block_kv = 2; });
  add({.name = "bias", .bias = {2, 4, 4, 5}}, [](P&) {});
  add({.name = "bias_heads", .bias = {1, 4, 4, 5}}, [](P&) {});
  add({.name = "bias_shared", .bias = {1, 1, 4, 1}}, [](P&) {});
  add({.name = "bias_keys", .bias = {2, 1, 1, 5}}, [](P& p) { p.causal = true; });
  add({.name = "relative_table", .relative_heads = 4, .relative_entries = 6}, [](P& p) { p.logits.relative_zero = 2; });
  add({.name = "relative_shared", .relative_heads = 1, .relative_entries = 3},
      [](P& p) { p.logits.relative_zero = 1; });
  add({.name = "alibi", .alibi = true}, [](P&) {});
  add({.name = "sinks", .sinks = true}, [](P&) {});
  add({.name = "sinks_masked", .mask = {1, 1, 4, 5}, .mask_keep = 0.3, .sinks = true}, [](P&) {});
  add({.name = "dropout", .sinks = true}, [](P& p) { p.dropout = 0.4, p.seed = 5; });
  add({.name = "packed", .q_len = 6, .kv_len = 9, .q_starts = {0, 2, 2, 6}, .kv_starts = {0, 4, 6, 9}, .alibi = true},
      [](P& p) { p.causal = true; });
  add({.name = "everything",
       .bias = {1, 4, 1, 5},
       .relative_heads = 4,
       .relative_entries = 5,
       .alibi = true,
       .sinks = true},
      [](P& p) { p.causal = true, p.logits.softcap = 2, p.logits.relative_zero = 1, p.dropout = 0.2; });
  return all;
}

class Gradients : public testing::TestWithParam<CaseSpec> {};

TEST_P(Gradients, EqualCentralDifferences) {
  AttentionCase c = make_case(GetParam(), DType::f64);
  const Results gradients = run_backward(c, run_forward(c, kReference), kReference);
  for (const Variable& variable : kVariables) {
    Tensor& tensor = variable.tensor(c);
    if (!tensor.defined()) continue;
    const Tensor& gradient = gradients.at(variable.gradient);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
      const auto at = static_cast<std::size_t>(n);
      double& x = tensor.values<double>()[at];
      const double kept = x, step = 1e-5;
      x = kept + step;
      const double above = loss(c);
      x = kept - step;
      const double below = loss(c);
      x = kept;
      EXPECT_NEAR(gradient.values<double>()[at], (above - below) / (2 * step), 2e-8)
          << variable.gradient << " element " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Gradients, testing::ValuesIn(specs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rootdk::test
