// The grid itself: it passes the plain computation and catches small mistakes.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "conformance/cases.h"
#include "conformance/conformance.h"
#include "support/plain_attention.h"

namespace rootdk::test {
namespace {

const Target kReference{.name = "reference"};

const CaseSpec& spec_named(const std::string& name) {
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.name == name) return spec;
  }
  throw std::runtime_error("no case " + name);
}

class Grid : public testing::TestWithParam<DType> {};

TEST_P(Grid, NamesAreUnique) {
  std::set<std::string> names;
  for (const CaseSpec& spec : conformance_cases()) EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
}

TEST_P(Grid, PassesThePlainComputation) {
  for (const char* name : {"head_dim_64", "causal_63x129", "everything", "softcap", "dropout", "sinks", "alibi"}) {
    const AttentionCase c = make_case(spec_named(name), GetParam());
    EXPECT_TRUE(violations(c, plain_forward(c).values).empty()) << name;
  }
}

// Each result in turn is off in one element, by a share of the largest magnitude that no rounding explains.
TEST_P(Grid, CatchesAWrongElement) {
  const double share = GetParam() == DType::f32 ? 1e-4 : 0.05;
  for (const char* name : {"head_dim_64", "gqa", "sinks", "bias_full", "relative_table", "alibi", "grad_entropy"}) {
    const AttentionCase c = make_case(spec_named(name), GetParam());
    const Results forward = run_forward(c, kReference), backward = run_backward(c, forward, kReference);
    for (const Results* results : {&forward, &backward}) {
      for (const auto& [key, tensor] : *results) {
        const double offset = share * difference(tensor, tensor).magnitude;
        // Gradients that are sums of many terms of both signs are held to the size of the terms.
        if (key == "grad_alibi_slopes" || key == "grad_relative_table" || key == "grad_sinks") continue;
        for (const double change : {offset, std::numeric_limits<double>::quiet_NaN()}) {
          Results spoiled;
          spoiled.emplace(key, clone(tensor));
          spoiled.at(key).values<double>()[spoiled.at(key).values<double>().size() / 2] += change;
          if (results == &backward) spoiled.emplace("grad_q", clone(backward.at("grad_q")));
          EXPECT_FALSE(violations(c, spoiled).empty()) << name << " " << key << " off by " << change;
        }
      }
    }
  }
}

// Results of a slightly different problem do not pass.
TEST_P(Grid, CatchesAWrongRule) {
  const std::pair<const char*, void (*)(AttentionCase&)> mistakes[] = {
      {"causal_63x129", [](AttentionCase& c) { c.scalars.causal = false, c.scalars.window_right = 1; }},
      {"window_16_3", [](AttentionCase& c) { c.scalars.window_left = 17; }},
      {"window_16_3", [](AttentionCase& c) { c.scalars.window_right = 2; }},
      {"kv_lengths", [](AttentionCase& c) { c.kv_lengths.values<std::int32_t>()[3] = 38; }},
      {"packed", [](AttentionCase& c) { c.kv_starts.values<std::int32_t>()[1] = 32; }},
      {"dropout", [](AttentionCase& c) { c.scalars.seed ^= 1u << 31; }},
      {"softcap", [](AttentionCase& c) { c.scalars.logits.softcap = 5.1; }},
      {"relative_table", [](AttentionCase& c) { c.scalars.logits.relative_zero = 17; }},
      {"sinks", [](AttentionCase& c) { c.sinks = Tensor(); }},
      {"scale_number", [](AttentionCase& c) { c.scalars.logits.temperature = 1.8; }},
      {"fully_masked_rows", [](AttentionCase& c) { c.mask.values<bool>()[0] = true; }},
      {"block_mask", [](AttentionCase& c) { c.block_mask.values<bool>()[5] = !c.block_mask.values<bool>()[5]; }},
  };
  for (const auto& [name, mistake] : mistakes) {
    const AttentionCase right = make_case(spec_named(name), GetParam());
    AttentionCase wrong = make_case(spec_named(name), GetParam());
    mistake(wrong);
    Results out;
    out.emplace("out", clone(run_forward(wrong, kReference).at("out")));
    EXPECT_FALSE(violations(right, out).empty()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Grid, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
