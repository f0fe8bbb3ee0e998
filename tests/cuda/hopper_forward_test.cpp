// The Hopper forward pass beyond the grid: long rows, many tiles a block, every kernel, fresh random shapes; the same
// bits every run, streams, graphs, and the sampling of statistics.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "conformance/cases.h"
#include "core/check.h"
#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"
#include "cuda/random_case.h"

namespace rootdk::test {
namespace {

using HopperForward = HopperTest;

// Each kernel on rows that span many key tiles, and on more query tiles than there are blocks.
void expect_every_variant(std::int64_t head_dim, DType dtype) {
  const std::string dim = std::to_string(head_dim);
  expect_close(
      make_case({.name = "long_full_" + dim, .heads = 1, .q_len = 200, .kv_len = 4500, .head_dim = head_dim}, dtype));
  CaseSpec spec{
      .name = "many_tiles_" + dim, .heads = 48, .kv_heads = 16, .q_len = 400, .kv_len = 400, .head_dim = head_dim};
  spec.scalars.causal = true;
  expect_close(make_case(spec, dtype));
  spec.heads = spec.kv_heads = 4;
  spec.scalars.logits.softcap = 20;
  spec.name = "softcap_" + dim;
  expect_close(make_case(spec, dtype));
  spec.alibi = true;
  spec.name = "rich_" + dim;
  expect_close(make_case(spec, dtype));
  spec.scalars.logits.softcap = 0;
  spec.name = "alibi_" + dim;
  expect_close(make_case(spec, dtype));
}

TEST_F(HopperForward, EveryKernel) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) expect_every_variant(head_dim, DType::bf16);
  for (const std::int64_t head_dim : {64, 128}) expect_every_variant(head_dim, DType::f16);
}

// Few keys: every shape of their kernel, and all that it supports.
TEST_F(HopperForward, FewKeys) {
  for (const std::int64_t head_dim : {32, 64, 80, 128}) {
    for (const std::int32_t kv_len : {1, 33, 64, 77, 81, 128, 129, 197, 209, 256}) {
      for (const std::int64_t q_len : {17, 130}) {
        CaseSpec spec{.name = "few_keys",
                      .batch = 2,
                      .heads = 2,
                      .kv_heads = 1,
                      .q_len = q_len,
                      .kv_len = kv_len,
                      .head_dim = head_dim};
        SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", " << q_len << " x " << kv_len);
        expect_close(make_case(spec, DType::bf16));
        spec.scalars.causal = true;
        spec.sinks = true;
        expect_close(make_case(spec, DType::f16));
        spec.kv_lengths = {kv_len, kv_len / 2};
        expect_close(make_case(spec, DType::bf16));
        spec.scalars.causal = false;
        spec.scalars.window_left = 20;
        spec.scalars.window_right = 9;
        expect_close(make_case(spec, DType::bf16));
      }
    }
  }
}

// More tiles than blocks: those with two stages process several, and use stages again.
TEST_F(HopperForward, FewKeysOfManyHeads) {
  for (const std::int32_t kv_len : {20, 77, 128, 180, 200, 256}) {
    CaseSpec spec{.name = "many_heads",
                  .batch = 2,
                  .heads = kv_len <= 128 ? 560 : 200,
                  .q_len = 70,
                  .kv_len = kv_len,
                  .head_dim = 64};
    spec.kv_heads = spec.heads / 4;
    expect_close(make_case(spec, DType::bf16));
    spec.kv_lengths = {kv_len / 3, kv_len};
    expect_close(make_case(spec, DType::bf16));
  }
}

// Several queries over few keys of many heads are not decode, with or without entropy and sum_p2.
TEST_F(HopperForward, FewQueriesOverFewKeysOfManyHeads) {
  for (const std::int64_t head_dim : {64, 96, 128, 256}) {
    for (const std::int64_t kv_len : {1, 2, 16, 100, 250}) {
      for (const std::int64_t q_len : {2, 7, 16}) {
        CaseSpec spec{.name = "few_queries", .batch = 17, .heads = 32, .kv_heads = 16, .q_len = q_len};
        spec.kv_len = kv_len;
        spec.head_dim = head_dim;
        spec.scalars.causal = kv_len % 2 == 0;
        const AttentionCase problem = make_case(spec, DType::bf16);
        SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", " << q_len << " x " << kv_len);
        expect_close(problem);
        const Results plain = run_forward(problem, hopper(), Statistics::none);
        const Results rows = run_forward(problem, hopper(), Statistics::rows);
        EXPECT_EQ(std::memcmp(plain.at("out").view().data, rows.at("out").view().data, plain.at("out").bytes()), 0);
      }
    }
  }
}

// A softcap where some arguments are small and others are not: both ways to compute it.
TEST_F(HopperForward, SoftcapOfAnyArgument) {
  for (const double cap : {0.5, 3.0, 30.0, 1000.0}) {
    CaseSpec spec{.name = "cap", .q_len = 200, .kv_len = 300, .head_dim = 128, .deviation = 2};
    spec.scalars.logits.softcap = cap;
    expect_close(make_case(spec, DType::f16));
  }
}

// New shapes every run; the seed is printed with a failure, and ROOTDK_TEST_SEED repeats it.
TEST_F(HopperForward, FreshRandomShapes) {
  constexpr RandomSizes kLargest{
      .batch = 3, .kv_heads = 3, .group = 4, .q_len = 500, .kv_len = 900, .packed_q_len = 300, .packed_kv_len = 400};
  const std::uint64_t seed = random_seed();
  SCOPED_TRACE("ROOTDK_TEST_SEED=" + std::to_string(seed));
  for (std::uint64_t i = 0; i < 60; ++i) {
    expect_close(make_case(random_spec(seed + i, kLargest), i % 2 ? DType::bf16 : DType::f16));
  }
}

// N(0, 1) with one element in a thousand from N(0, 100): rows that one key dominates.
void plant_outliers(AttentionCase& c) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> wide(0, 10);
  for (DataTensor* tensor : {&c.q, &c.k, &c.v}) {
    for (double& x : tensor->memory().values<double>()) {
      if (random() % 1000 == 0) x += wide(random);
    }
  }
}

TEST_F(HopperForward, Outliers) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    CaseSpec spec{.name = "outliers", .heads = 4, .q_len = 400, .kv_len = 700, .head_dim = head_dim};
    spec.edit = plant_outliers;
    for (const bool causal : {false, true}) {
      spec.scalars.causal = causal;
      expect_close(make_case(spec, DType::bf16));
    }
  }
}

void expect_same_bits(const Results& a, const Results& b) {
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(std::memcmp(tensor.view().data, b.at(name).view().data, tensor.bytes()), 0) << name;
  }
}

TEST_F(HopperForward, SameBitsEveryRun) {
  for (const std::int64_t head_dim : {64, 128}) {
    CaseSpec spec{.name = "bits",
                  .batch = 2,
                  .heads = 12,
                  .kv_heads = 4,
                  .q_len = 600,
                  .kv_len = 640,
                  .head_dim = head_dim,
                  .kv_lengths = {640, 333}};
    spec.scalars.causal = true;
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results first = run_forward(problem, hopper(), Statistics::rows);
    for (int run = 0; run < 5; ++run) expect_same_bits(first, run_forward(problem, hopper(), Statistics::rows));
  }
}

// Entropy and sum_p2 come from other kernels than an output alone: their bits are the same.
TEST_F(HopperForward, StatisticsChangeNoBit) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const std::int64_t kv_len : {30, 70, 120, 200, 250, 500, 1500}) {
      for (const bool causal : {false, true}) {
        CaseSpec spec{.name = "plain", .heads = 4, .q_len = 300, .kv_len = kv_len, .head_dim = head_dim};
        spec.scalars.causal = causal;
        const AttentionCase problem = make_case(spec, DType::f16);
        SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", keys " + std::to_string(kv_len));
        expect_same_bits(run_forward(problem, hopper(), Statistics::none),
                         run_forward(problem, hopper(), Statistics::rows));
      }
    }
  }
}

// What else is in the batch changes nothing: the second entry alone gives the bits it gives beside the first.
TEST_F(HopperForward, SameBitsWhateverElseIsInTheBatch) {
  CaseSpec spec{.name = "pair", .batch = 2, .heads = 8, .q_len = 300, .kv_len = 300, .head_dim = 128};
  spec.scalars.causal = true;
  const AttentionCase both = make_case(spec, DType::bf16);
  AttentionCase alone = both.converted(DType::bf16);
  alone.q = DataTensor(both.q.view().slice(0, 1, 2), false);
  alone.k = DataTensor(both.k.view().slice(0, 1, 2), false);
  alone.v = DataTensor(both.v.view().slice(0, 1, 2), false);
  const Tensor together = clone(run_forward(both, hopper(), Statistics::none).at("out").view().slice(0, 1, 2));
  const Results single = run_forward(alone, hopper(), Statistics::none);
  EXPECT_EQ(std::memcmp(together.view().data, single.at("out").view().data, together.bytes()), 0);
}

// The same where the number of heads decides between query tiles of one height and of two.
TEST_F(HopperForward, SameBitsWithTilesOfTwoHeights) {
  for (const std::int64_t q_len : {640, 500, 1000}) {
    const AttentionCase both = make_case(
        {.name = "heights", .batch = 2, .heads = 30, .q_len = q_len, .kv_len = 300, .head_dim = 64}, DType::bf16);
    expect_close(both);
    AttentionCase alone = both.converted(DType::bf16);
    alone.q = DataTensor(both.q.view().slice(0, 1, 2), false);
    alone.k = DataTensor(both.k.view().slice(0, 1, 2), false);
    alone.v = DataTensor(both.v.view().slice(0, 1, 2), false);
    const Tensor together = clone(run_forward(both, hopper(), Statistics::none).at("out").view().slice(0, 1, 2));
    const Results single = run_forward(alone, hopper(), Statistics::none);
    EXPECT_EQ(std::memcmp(together.view().data, single.at("out").view().data, together.bytes()), 0) << q_len;
    expect_same_bits(run_forward(both, hopper(), Statistics::none), run_forward(both, hopper(), Statistics::rows));
  }
}

// A call by hand: tensors on the device, for what run_forward does not offer.
struct DeviceCall {
  explicit DeviceCall(const AttentionCase& c)
      : placement(&cuda_memory()),
        out(c.dtype, {c.q.view().size(0), c.q.view().size(1), c.q.view().size(2), c.v.view().size(3)}),
        entropy(DType::f32, {c.q.view().size(0), c.q.view().size(1), c.q.view().size(2)}) {
    q = placement.input(c.q.view());
    k = placement.input(c.k.view());
    v = placement.input(c.v.view());
    params = placement.params(c.params());
    poison(out);
    poison(entropy);
    device_out = placement.output(out.view());
    execution.target = "sm90";
  }
  void add_workspace() { placement.add_workspace(execution, attention_workspace(q, k, v, device_out, params, stats)); }
  void run() { attention(q, k, v, device_out, params, stats, execution); }

  Placement placement;
  Tensor out, entropy;
  ConstTensorView q, k, v;
  TensorView device_out;
  AttentionParams params;
  AttentionStats stats;
  Execution execution;
};

// lse, max_logit and max_weight alone: entropy and sum_p2, which other tests ask for too, come from other kernels.
TEST_F(HopperForward, RowValuesWithoutMoments) {
  struct Shape {
    std::int64_t heads, q_len, kv_len;
  };
  for (const auto& [heads, q_len, kv_len] :
       {Shape{4, 150, 50}, {4, 150, 77}, {4, 150, 128}, {4, 200, 197}, {4, 250, 250}, {60, 640, 300}, {4, 200, 300}}) {
    CaseSpec spec{.name = "row_values", .heads = heads, .q_len = q_len, .kv_len = kv_len, .head_dim = 64};
    spec.sinks = true;
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results expected = run_reference(problem);
    DeviceCall call(problem);
    Tensor values[3];
    TensorView* const views[3] = {&call.stats.lse, &call.stats.max_logit, &call.stats.max_weight};
    for (int i = 0; i < 3; ++i) {
      values[i] = Tensor(DType::f32, {1, heads, q_len});
      poison(values[i]);
      *views[i] = call.placement.output(values[i].view());
    }
    call.add_workspace();
    call.run();
    call.placement.fetch();
    const char* const names[3] = {"lse", "max_logit", "max_weight"};
    for (int i = 0; i < 3; ++i) {
      double worst = 0;
      for (std::size_t at = 0; at < values[i].values<float>().size(); ++at) {
        const double error = values[i].values<float>()[at] - expected.at(names[i]).values<double>()[at];
        worst = std::isfinite(error) ? std::max(worst, std::abs(error)) : INFINITY;
      }
      EXPECT_LE(worst, 1e-3) << names[i] << " of " << q_len << " x " << kv_len;
    }
  }
}

TEST_F(HopperForward, SampledRowsAreExactAndOthersNaN) {
  for (const std::int64_t head_dim : {64, 128}) {
    CaseSpec spec{.name = "sampled", .heads = 4, .q_len = 1000, .kv_len = 1000, .head_dim = head_dim};
    spec.scalars.causal = true;
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results expected = run_reference(problem);
    DeviceCall call(problem);
    call.stats.entropy = call.placement.output(call.entropy.view());
    call.params.stats.stride = 4;
    call.add_workspace();
    call.run();
    call.placement.fetch();
    int given = 0;
    for (std::size_t i = 0; i < call.entropy.values<float>().size(); ++i) {
      const double sampled = call.entropy.values<float>()[i];
      if (std::isnan(sampled)) continue;
      ++given;
      EXPECT_NEAR(sampled, expected.at("entropy").values<double>()[i], 1e-3);
    }
    EXPECT_GE(given, 4 * 1000 / 8);
    EXPECT_LE(given, 4 * 1000 / 2);
  }
}

// Captured once, replayed on new inputs: nothing in a call may allocate or synchronise.
TEST_F(HopperForward, CapturesIntoAGraph) {
  CaseSpec spec{.name = "graph", .heads = 4, .q_len = 200, .kv_len = 300, .head_dim = 128, .kv_lengths = {211}};
  spec.scalars.causal = true;
  const AttentionCase problem = make_case(spec, DType::bf16);
  const Results plain = run_forward(problem, hopper(), Statistics::none);
  DeviceCall call(problem);
  call.add_workspace();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  call.execution.cuda.stream = stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  call.run();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  call.placement.fetch();
  const Tensor out = convert(call.out, DType::f64);
  EXPECT_EQ(std::memcmp(out.view().data, plain.at("out").view().data, out.bytes()), 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(HopperForward, MissingWorkspaceIsNamed) {
  // Tiles are counted where there are more of them than multiprocessors.
  CaseSpec spec{.name = "workspace", .heads = 200, .q_len = 200, .kv_len = 300, .head_dim = 64, .kv_lengths = {211}};
  DeviceCall call(make_case(spec, DType::bf16));
  ASSERT_GT(attention_workspace(call.q, call.k, call.v, call.device_out, call.params, call.stats), 0u);
  try {
    call.run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bytes of device workspace"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace rootdk::test
