// The Hopper backward pass beyond the grid: many tiles, grouped heads, packed sequences, fresh random shapes; the same
// bits every run and under load, graphs, and what it refuses.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "conformance/cases.h"
#include "conformance/conformance.h"
#include "cuda/cuda_memory.h"
#include "cuda/device_call.h"
#include "cuda/device_case.h"
#include "cuda/random_case.h"
#include "support/plain_attention.h"

namespace rootdk::test {
namespace {

using HopperBackward = HopperTest;

Target portable() { return {.name = "sm80", .memory = &cuda_memory()}; }

// The Euclidean one; infinite where a difference is not finite.
double distance(const Tensor& a, const Tensor& b) {
  double sum = 0;
  const auto x = a.values<double>();
  const auto y = b.values<double>();
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return std::isfinite(sum) ? std::sqrt(sum) : INFINITY;
}

double length(const Tensor& a) {
  double sum = 0;
  for (const double x : a.values<double>()) sum += x * x;
  return std::sqrt(sum);
}

// Long calls are compared with the portable path, which the grid compares with the reference.
void expect_like_portable(const AttentionCase& problem) {
  SCOPED_TRACE(problem.name + " " + std::string(name_of(problem.dtype)));
  Results forward = run_forward(problem, portable(), Statistics::rows);
  ASSERT_EQ(backward_refusal(problem, forward, hopper()), "");
  const Results expected = run_backward(problem, forward, portable());
  const double rounding = problem.dtype == DType::bf16 ? 6e-3 : 1e-3;
  for (const auto& [name, tensor] : run_backward(problem, forward, hopper())) {
    const Tensor& wanted = expected.at(name);
    EXPECT_LE(distance(wanted, tensor), rounding * length(wanted)) << name;
  }
}

// More work items than there are blocks, rows of many tiles, every kernel.
void expect_every_kernel(std::int64_t head_dim, DType dtype) {
  CaseSpec spec{
      .name = "tiles_" + std::to_string(head_dim), .heads = 24, .q_len = 700, .kv_len = 800, .head_dim = head_dim};
  expect_like_portable(make_case(spec, dtype));
  spec.scalars.causal = true;
  expect_like_portable(make_case(spec, dtype));
  spec.scalars.window_left = 200;
  spec.kv_heads = 6;
  expect_like_portable(make_case(spec, dtype));
  spec.scalars.logits.softcap = 15;
  expect_like_portable(make_case(spec, dtype));
  spec.scalars.logits.softcap = 0;
  spec.alibi = true;
  spec.sinks = true;
  expect_like_portable(make_case(spec, dtype));
  spec.grad_entropy = true;
  spec.scalars.dropout = 0.2;
  spec.relative_heads = spec.heads;
  spec.relative_entries = 301;
  spec.scalars.logits.relative_zero = 150;
  expect_like_portable(make_case(spec, dtype));
}

class HopperBackwardKernels : public HopperTest, public testing::WithParamInterface<std::pair<int, DType>> {};

TEST_P(HopperBackwardKernels, GiveWhatThePortableOnesGive) {
  const auto [head_dim, dtype] = GetParam();
  expect_every_kernel(head_dim, dtype);
}

INSTANTIATE_TEST_SUITE_P(Cuda, HopperBackwardKernels,
                         testing::Values(std::pair{64, DType::bf16}, std::pair{128, DType::bf16},
                                         std::pair{192, DType::bf16}, std::pair{256, DType::bf16},
                                         std::pair{128, DType::f16}, std::pair{256, DType::f16}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.second)) + "_" + std::to_string(info.param.first);
                         });

// Each term of rich logits alone, on many tiles; every row sees every key, so that tiles are walked in a ring.
TEST_F(HopperBackward, EveryTerm) {
  const CaseSpec plain{.name = "term", .heads = 12, .kv_heads = 6, .q_len = 600, .kv_len = 600, .head_dim = 128};
  std::vector<CaseSpec> specs(8, plain);
  specs[0].bias = {1, plain.heads, plain.q_len, plain.kv_len};
  specs[1].bias = {1, 1, plain.q_len, plain.kv_len};
  specs[1].bias_in_data_type = true;
  specs[2].mask = {1, plain.heads, plain.q_len, plain.kv_len};
  specs[3].block_mask = {1, 1, 10, 20};
  specs[3].scalars.block_q = 60;
  specs[3].scalars.block_kv = 30;
  specs[4].relative_heads = 1;
  specs[4].relative_entries = 129;
  specs[4].scalars.logits.relative_zero = 64;
  specs[5].scalars.dropout = 0.1;
  specs[6].grad_entropy = true;
  specs[7].scalars.logits.softcap = 0.5;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name += std::to_string(i);
    expect_like_portable(make_case(specs[i], DType::bf16));
  }
}

// A head whose blocks of queries have parts of the keys, of unequal length.
CaseSpec few_wide_heads(bool causal) {
  CaseSpec spec{.name = "wide",
                .heads = 2,
                .kv_heads = 1,
                .q_len = causal ? 4000 : 1900,
                .kv_len = causal ? 4130 : 2100,
                .head_dim = 256};
  spec.scalars.causal = causal;
  return spec;
}

// At most four rows a key head have a kernel without tensor cores; five have not.
TEST_F(HopperBackward, VeryFewRows) {
  for (const std::int64_t head_dim : {64, 80, 128, 256}) {
    for (const std::int64_t q_len : {1, 2, 3, 4, 5}) {
      for (const std::int64_t kv_len : {3, 100, 3000}) {
        CaseSpec spec{.name = "rows_" + std::to_string(q_len) + "_" + std::to_string(kv_len),
                      .batch = 2,
                      .heads = 3,
                      .q_len = q_len,
                      .kv_len = kv_len,
                      .head_dim = head_dim};
        expect_like_portable(make_case(spec, DType::bf16));
        spec.scalars.causal = true;
        spec.scalars.window_left = 200;
        spec.sinks = true;
        expect_like_portable(make_case(spec, DType::f16));
      }
    }
  }
  CaseSpec grouped{.name = "grouped", .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 5000, .head_dim = 128};
  expect_like_portable(make_case(grouped, DType::bf16));
  grouped.batch = 3;
  grouped.kv_lengths = {5000, 0, 517};
  expect_like_portable(make_case(grouped, DType::bf16));
}

TEST_F(HopperBackward, FewWideHeads) {
  for (const bool causal : {false, true}) {
    expect_like_portable(make_case(few_wide_heads(causal), DType::bf16));
    expect_like_portable(make_case(few_wide_heads(causal), DType::f16));
  }
}

TEST_F(HopperBackward, FewHeads) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      CaseSpec spec{.name = "few", .heads = 1, .q_len = 4096, .kv_len = 4096, .head_dim = head_dim};
      spec.scalars.causal = causal;
      expect_like_portable(make_case(spec, DType::bf16));
    }
  }
}

// Causal rows of more key tiles than a front has; and of many heads, where there is none.
TEST_F(HopperBackward, MoreThanAFront) {
  CaseSpec few{.name = "few", .heads = 5, .q_len = 4096, .kv_len = 4096, .head_dim = 128};
  few.scalars.causal = true;
  expect_like_portable(make_case(few, DType::bf16));
  few.head_dim = 64;
  expect_like_portable(make_case(few, DType::bf16));
  few.scalars.dropout = 0.1;  // tiles of 64 keys
  expect_like_portable(make_case(few, DType::f16));

  CaseSpec many{.name = "many", .heads = 40, .q_len = 1400, .kv_len = 1500, .head_dim = 128};
  many.scalars.causal = true;
  for (const int window : {-1, 100, 700}) {
    many.scalars.window_left = window;
    expect_like_portable(make_case(many, DType::bf16));
  }
}

TEST_F(HopperBackward, PackedSequences) {
  CaseSpec spec{.name = "packed",
                .heads = 8,
                .kv_heads = 2,
                .q_len = 1500,
                .kv_len = 1800,
                .head_dim = 128,
                .q_starts = {0, 130, 130, 131, 900, 1164, 1500},
                .kv_starts = {0, 200, 201, 201, 900, 1600, 1800}};
  for (const bool causal : {false, true}) {
    spec.scalars.causal = causal;
    expect_like_portable(make_case(spec, DType::bf16));
  }
}

// A NaN in one sequence shows in no other.
void plant_neighbour_nan(AttentionCase& c) {
  for (DataTensor* tensor : {&c.q, &c.k, &c.v, &c.grad_out}) {
    const TensorView view = tensor->view();
    for (std::int64_t d = 0; d < view.size(3); ++d) view.as<double>()[50 * view.stride(2) + d] = NAN;
  }
}
TEST_F(HopperBackward, PackedNeighbourWithNaN) {
  CaseSpec spec{.name = "neighbour",
                .heads = 2,
                .q_len = 140,
                .kv_len = 140,
                .head_dim = 64,
                .q_starts = {0, 50, 140},
                .kv_starts = {0, 50, 140},
                .edit = plant_neighbour_nan};
  spec.scalars.causal = true;
  ConformanceReport report;
  expect_case(make_case(spec, DType::bf16), hopper(), report);
  EXPECT_EQ(report.backward_runs, 1);
}

// At most twice as far from the reference, over all elements, as the plain computation in the same type.
void expect_close_as_plain(const AttentionCase& problem) {
  SCOPED_TRACE(problem.name + " " + std::string(name_of(problem.dtype)));
  const AttentionCase wide = problem.converted(DType::f64);
  const Results forward = run_forward(wide, {.name = "reference"});
  Results saved;
  saved.emplace("out", convert(convert(forward.at("out"), problem.dtype), DType::f64));
  for (const char* name : {"lse", "entropy"}) {
    saved.emplace(name, convert(convert(forward.at(name), DType::f32), DType::f64));
  }
  ASSERT_EQ(backward_refusal(problem, saved, hopper()), "");
  const Results truth = run_backward(wide, saved, {.name = "reference"});
  const PlainResults plain = plain_backward(problem, saved);
  for (const auto& [name, tensor] : run_backward(problem, saved, hopper())) {
    if (!plain.size.contains(name)) continue;  // the column mass, which the portable path computes
    const double rounding = 1e-5 * std::sqrt(static_cast<double>(tensor.elements())) * plain.size.at(name);
    EXPECT_LE(distance(truth.at(name), tensor), 2 * distance(truth.at(name), plain.values.at(name)) + rounding) << name;
  }
}

// New shapes every run; the seed is printed with a failure, and ROOTDK_TEST_SEED repeats it.
TEST_F(HopperBackward, FreshRandomShapes) {
  const std::uint64_t seed = random_seed();
  SCOPED_TRACE("ROOTDK_TEST_SEED=" + std::to_string(seed));
  for (std::uint64_t i = 0; i < 60; ++i) {
    CaseSpec spec = random_spec(seed + i, {});
    if (spec.alibi || spec.relative_heads > 0 || spec.bias[0] > 0) spec.scalars.logits.softcap = 0;  // refused together
    expect_close_as_plain(make_case(spec, i % 2 ? DType::bf16 : DType::f16));
  }
}

// What the Hopper kernels lack is named; the portable path takes it.
TEST_F(HopperBackward, NamesWhatItRefuses) {
  const auto refusal = [](const CaseSpec& spec) {
    const AttentionCase problem = make_case(spec, DType::bf16);
    return backward_refusal(problem, run_forward(problem, portable(), Statistics::rows), hopper());
  };
  EXPECT_EQ(refusal({.name = "odd", .head_dim = 60}), "head_dim 60 or value_dim 60 is not a multiple of 8");
  CaseSpec cap{.name = "cap", .head_dim = 64, .alibi = true};
  cap.scalars.logits.softcap = 20;
  EXPECT_EQ(refusal(cap), "a softcap together with alibi_slopes, relative_table or bias is not supported");
}

// Causal rows add in the plain order, full ones in a ring.
CaseSpec busy_spec(std::int64_t head_dim, bool causal = true) {
  CaseSpec spec{.name = "busy",
                .batch = 2,
                .heads = 16,
                .kv_heads = 8,
                .q_len = 900,
                .kv_len = causal ? 1000 : 900,
                .head_dim = head_dim,
                .sinks = true};
  spec.scalars.causal = causal;
  return spec;
}

TEST_F(HopperBackward, GroupedHeadsInARing) { expect_like_portable(make_case(busy_spec(128, false), DType::bf16)); }

void expect_same_bits_every_run(const CaseSpec& spec) {
  DeviceCall call(make_case(spec, DType::bf16), "sm90");
  call.queue(nullptr);
  const auto first = call.bytes();
  for (int run = 0; run < 10; ++run) {
    call.poison_outputs();
    call.queue(nullptr);
    EXPECT_EQ(call.bytes(), first) << "run " << run;
  }
}
TEST_F(HopperBackward, SameBitsEveryRun) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t head_dim : {64, 128, 192, 256}) {
      CaseSpec spec = busy_spec(head_dim, causal);
      if (head_dim == 192) spec.scalars.dropout = 0.1;
      expect_same_bits_every_run(spec);
    }
    expect_same_bits_every_run(few_wide_heads(causal));
  }
}

void expect_same_bits_on_two_streams(const CaseSpec& one, const CaseSpec& other) {
  DeviceCall first(make_case(one, DType::bf16), "sm90"), second(make_case(other, DType::f16), "sm90");
  first.queue(nullptr);
  second.queue(nullptr);
  const auto first_alone = first.bytes(), second_alone = second.bytes();
  first.poison_outputs();
  second.poison_outputs();
  queue_on_two_streams(first, second, 10);
  EXPECT_EQ(first.bytes(), first_alone);
  EXPECT_EQ(second.bytes(), second_alone);
}

TEST_F(HopperBackward, SameBitsOnTwoStreamsAtOnce) {
  expect_same_bits_on_two_streams(busy_spec(64), busy_spec(128));
  expect_same_bits_on_two_streams(busy_spec(128, false), busy_spec(128));
  expect_same_bits_on_two_streams(busy_spec(128, false), busy_spec(128, false));
  expect_same_bits_on_two_streams(busy_spec(256), busy_spec(192, false));
  expect_same_bits_on_two_streams(few_wide_heads(true), few_wide_heads(false));
}

// The second entry of a batch alone gives the bits it gives beside the first.
void expect_bits_of_an_entry_alone(const CaseSpec& spec) {
  SCOPED_TRACE(spec.name);
  const AttentionCase both = make_case(spec, DType::bf16);
  AttentionCase alone = both.converted(DType::bf16);
  for (auto [part, whole] :
       {std::pair{&alone.q, &both.q}, {&alone.k, &both.k}, {&alone.v, &both.v}, {&alone.grad_out, &both.grad_out}}) {
    *part = DataTensor(whole->view().slice(0, 1, 2), false);
  }
  const auto gradients = [](const AttentionCase& problem) {
    return run_backward(problem, run_forward(problem, hopper(), Statistics::rows), hopper());
  };
  const Results together = gradients(both), single = gradients(alone);
  for (const char* name : {"grad_q", "grad_k", "grad_v"}) {
    const Tensor part = clone(together.at(name).view().slice(0, 1, 2));
    EXPECT_EQ(std::memcmp(part.view().data, single.at(name).view().data, part.bytes()), 0) << name;
  }
}

TEST_F(HopperBackward, SameBitsWhateverElseIsInTheBatch) {
  expect_bits_of_an_entry_alone(busy_spec(128));
  expect_bits_of_an_entry_alone(busy_spec(256));
  // One head of many key tiles: its gradient of q comes in partial sums.
  CaseSpec few{.name = "few", .batch = 2, .heads = 1, .q_len = 3200, .kv_len = 3200, .head_dim = 64};
  expect_bits_of_an_entry_alone(few);
  few.scalars.causal = true;
  expect_bits_of_an_entry_alone(few);
  CaseSpec wide = few_wide_heads(false);
  wide.batch = 2;
  expect_bits_of_an_entry_alone(wide);
}

TEST_F(HopperBackward, RunsInsideAGraph) {
  for (const CaseSpec& spec :
       {busy_spec(128, false), busy_spec(128), busy_spec(256), few_wide_heads(false), few_wide_heads(true)}) {
    DeviceCall call(make_case(spec, DType::bf16), "sm90");
    call.queue(nullptr);
    const auto eager = call.bytes();
    call.poison_outputs();
    call.replay_as_graph(3);
    EXPECT_EQ(call.bytes(), eager) << spec.head_dim;
  }
}

// A few small cases that together touch every kernel: what a memory checker has time for.
TEST_F(HopperBackward, SmallSet) {
  for (const char* name : {"head_dim_40", "causal_130x191", "packed_unequal", "alibi_causal", "softcap",
                           "kv_lengths_padding_nan", "last_key_nan_causal", "head_dim_256", "dropout"}) {
    expect_conformance(hopper(), DType::bf16, name);
  }
}

}  // namespace
}  // namespace rootdk::test
