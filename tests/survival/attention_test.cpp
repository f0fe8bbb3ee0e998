// attention(), its gradients, and the other functions that work on tensors alone.

#include "rootdk/attention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "conformance/cases.h"
#include "rootdk/fp8.h"
#include "rootdk/positions.h"
#include "survival/survive.h"

namespace rootdk::test {
namespace {

Bits bits_of(const Results& results) {
  Bits bits;
  for (const auto& [name, tensor] : results) {
    bits.add(name);
    bits.add(tensor);
  }
  return bits;
}

std::vector<CaseSpec> cases() {
  return {
      {.name = "survives_causal_groups",
       .heads = 4,
       .kv_heads = 2,
       .q_len = 9,
       .kv_len = 21,
       .scalars = {.causal = true}},
      {.name = "survives_maps",
       .batch = 2,
       .q_len = 17,
       .kv_len = 40,
       .sinks = true,
       .pooled_rows = 3,
       .pooled_columns = 5,
       .weight_rows = {1, 16}},
      {.name = "survives_bias_and_masks",
       .batch = 2,
       .q_len = 12,
       .kv_len = 30,
       .scalars = {.logits = {.softcap = 3}, .window_left = 9},
       .kv_lengths = {30, 11},
       .mask = {2, 1, 12, 30},
       .bias = {1, 2, 12, 30},
       .alibi = true},
      {.name = "survives_packed",
       .q_len = 24,
       .kv_len = 24,
       .scalars = {.causal = true},
       .q_starts = {0, 7, 7, 24},
       .kv_starts = {0, 7, 7, 24}},
      {.name = "survives_relative_dropout",
       .q_len = 10,
       .kv_len = 14,
       .scalars = {.dropout = 0.3, .seed = 7},
       .relative_heads = 2,
       .relative_entries = 9},
  };
}

// Memory runs out in the very first call of the process, while lists of implementations and threads are made.
TEST(SurvivesAttention, AsTheFirstCallOfAProcess) {
  const AttentionCase problem = make_case(cases()[0], DType::f32);
  expect_survives("first call", computes([&] {
                    return bits_of(run_forward(problem, {.name = "", .executor = &shared_executor(3)}));
                  }),
                  {.cold = true});
}

TEST(SurvivesAttention, APoolThatCannotBeMadeIsMadeLater) {
  constexpr int kThreads = 6;
  std::int64_t n = 1;
  for (bool failed = true; failed; ++n) {
    const FailingAllocation failing(n, Scarcity::once);
    try {
      shared_executor(kThreads);
    } catch (const std::bad_alloc&) {
    }
    failed = FailingAllocation::happened();
  }
  EXPECT_GT(n, kThreads);  // each thread takes memory
  std::atomic<int> runs = 0;
  shared_executor(kThreads).parallel_for(100, [&](std::int64_t) { ++runs; });
  EXPECT_EQ(runs.load(), 100);
}

TEST(SurvivesAttention, Forward) {
  for (const CaseSpec& spec : cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const AttentionCase problem = make_case(spec, dtype);
      for (const int threads : {1, 3}) {
        expect_survives(spec.name + " in " + std::string(name_of(dtype)), computes([&] {
                          return bits_of(run_forward(problem, {.name = "", .executor = &shared_executor(threads)}));
                        }));
      }
    }
  }
}

TEST(SurvivesAttention, Backward) {
  for (const CaseSpec& spec : cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const AttentionCase problem = make_case(spec, dtype);
      const Target target{.name = "", .executor = &shared_executor(3)};
      const Results forward = run_forward(problem, target);
      expect_survives(spec.name + " in " + std::string(name_of(dtype)),
                      computes([&] { return bits_of(run_backward(problem, forward, target)); }));
    }
  }
}

// The specification allocates in its tasks, on every thread.
TEST(SurvivesAttention, Reference) {
  for (const CaseSpec& spec : {cases()[1], cases()[2]}) {
    const AttentionCase problem = make_case(spec, DType::f64);
    const Target target{.name = "reference", .executor = &shared_executor(3)};
    const Results forward = run_forward(problem, target);
    const SurvivalOptions options{.one_by_one = 120};
    expect_survives(spec.name, computes([&] { return bits_of(run_forward(problem, target)); }), options);
    expect_survives(spec.name, computes([&] { return bits_of(run_backward(problem, forward, target)); }), options);
  }
}

TEST(SurvivesAttention, Fp8) {
  for (CaseSpec spec : cases()) {
    spec.scalars.compute = DType::f8e4m3;
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Target target{.name = "fp8_cpu", .executor = &shared_executor(3)};
    const Results forward = run_forward(problem, target);
    const SurvivalOptions options{.one_by_one = 120};
    expect_survives(spec.name, computes([&] { return bits_of(run_forward(problem, target)); }), options);
    expect_survives(spec.name, computes([&] { return bits_of(run_backward(problem, forward, target)); }), options);
  }
  const Tensor q = random_tensor(DType::f32, {1, 2, 9, 16}, 1), k = random_tensor(DType::f32, {1, 2, 20, 16}, 2);
  expect_survives("quantize_for_attention", computes([&] {
                    const QuantizedTensors numbers = quantize_for_attention(q, k, k);
                    Bits bits;
                    bits.add(numbers.q);
                    bits.add(numbers.k_scales);
                    return bits;
                  }));
}

TEST(SurvivesAttention, KeysInSeveralSpans) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 40, 32}, 1), k = random_tensor(DType::f32, {1, 2, 3000, 32}, 2);
  expect_survives("workspace_limit", computes([&] {
                    Tensor out(DType::f32, {1, 2, 40, 32});
                    attention(q, k, k, out, {}, {},
                              {.cpu = {.executor = &shared_executor(3), .workspace_limit = 600000}});
                    Bits bits;
                    bits.add(out);
                    return bits;
                  }));
}

TEST(SurvivesAttention, Explanations) {
  const Tensor q(DType::f32, {1, 2, 8, 16});
  expect_survives("explain", computes([&] {
                    Tensor out(DType::f32, {1, 2, 8, 16});
                    const Explanation explanation = explain(q, q, q, out);
                    Bits bits;
                    bits.add(explanation.chosen);
                    bits.add(explanation.error);
                    for (const auto& candidate : explanation.candidates) bits.add(candidate.name + candidate.refusal);
                    return bits;
                  }));
}

TEST(SurvivesAttention, MergeStates) {
  const Tensor parts = random_tensor(DType::f32, {3, 1, 2, 5, 8}, 1), lse = random_tensor(DType::f32, {3, 1, 2, 5}, 2);
  expect_survives("merge_states", computes([&] {
                    Tensor out(DType::f32, {1, 2, 5, 8}), merged(DType::f32, {1, 2, 5});
                    merge_states(parts, lse, out, merged);
                    Bits bits;
                    bits.add(out);
                    bits.add(merged);
                    return bits;
                  }));
}

template <class Fill>
void expect_filled(const std::string& name, const Shape& shape, Fill fill) {
  expect_survives(name, computes([&] {
                    Tensor out(DType::f32, shape);
                    fill(out);
                    Bits bits;
                    bits.add(out);
                    return bits;
                  }));
}

TEST(SurvivesPositions, Encodings) {
  const Tensor x = random_tensor(DType::f32, {2, 2, 6, 16}, 1), rows = random_tensor(DType::f32, {2, 6, 16}, 2);
  const Tensor table = random_tensor(DType::f32, {9, 16}, 3), buckets = random_tensor(DType::f32, {32, 2}, 4);
  const Tensor distances = random_tensor(DType::f32, {2, 257}, 5);
  const RopeParams yarn{.scaling = RopeScaling::yarn, .factor = 4, .original_max_position = 64};
  expect_filled("rope", {2, 2, 6, 16}, [&](Tensor& out) { rope(x, out, yarn); });
  expect_filled("rope_backward", {2, 2, 6, 16}, [&](Tensor& out) { rope_backward(x, out, yarn); });
  expect_filled("rope_frequencies", {8}, [&](Tensor& out) { rope_frequencies(out, 16, yarn); });
  expect_filled("sinusoidal_positions", {6, 16}, [&](Tensor& out) { sinusoidal_positions(out); });
  expect_filled("add_learned_positions", {2, 6, 16}, [&](Tensor& out) { add_learned_positions(out, table); });
  expect_filled("add_learned_positions_backward", {9, 16},
                [&](Tensor& out) { add_learned_positions_backward(rows, out); });
  expect_filled("t5_relative_table", {2, 257}, [&](Tensor& out) { t5_relative_table(buckets, out); });
  expect_filled("t5_relative_table_backward", {32, 2},
                [&](Tensor& out) { t5_relative_table_backward(distances, out); });
  expect_filled("alibi_slopes", {6}, [&](Tensor& out) { alibi_slopes(out); });
  expect_filled("convert", {1}, [&](Tensor& out) { out = convert(x, DType::bf16); });
}

TEST(SurvivesPositions, TransformerXl) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 4, 8}, 1), v = random_tensor(DType::f32, {2, 8}, 2);
  const Tensor r = random_tensor(DType::f32, {2, 7, 8}, 3), grad = random_tensor(DType::f32, {1, 2, 4, 5}, 4);
  expect_filled("transformer_xl_bias", {1, 2, 4, 5}, [&](Tensor& out) { transformer_xl_bias(q, v, r, out); });
  expect_filled("transformer_xl_bias_backward", {2, 7, 8}, [&](Tensor& out) {
    Tensor grad_q(DType::f32, {1, 2, 4, 8}), grad_v(DType::f32, {2, 8});
    transformer_xl_bias_backward(q, v, r, grad, grad_q, grad_v, out);
  });
}

}  // namespace
}  // namespace rootdk::test
