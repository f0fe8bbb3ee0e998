// The amx kernels on tiles in software against those of avx512bf16: the same operation on the same bf16 operands.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "conformance/cases.h"
#include "conformance/conformance.h"
#include "cpu/amx_emulated.h"
#include "cpu/backward.h"
#include "cpu/backward_plan.h"
#include "cpu/forward.h"
#include "cpu/forward_plan.h"
#include "cpu/processor.h"

namespace rootdk::test {
namespace {

struct Outputs {
  Tensor out, lse, entropy, column_mass;

  explicit Outputs(const AttentionCase& problem) {
    const ConstTensorView q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
    out = Tensor(DType::bf16, {q.size(0), q.size(1), q.size(2), v.size(3)});
    lse = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)});
    entropy = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)});
    column_mass = Tensor(DType::f32, {q.size(0), q.size(1), k.size(2)});
  }

  void run(const AttentionCase& problem, const cpu::KernelTable& kernels, bool with_map = false) {
    Tensor map = with_map ? Tensor(DType::f32, {out.view().size(0), out.view().size(1), 3, 2}) : Tensor();
    const ForwardCall call =
        make_forward_call(problem.q.view(), problem.k.view(), problem.v.view(), out, problem.params(),
                          {.lse = lse, .entropy = entropy, .column_mass = column_mass, .pooled_map = map}, {});
    cpu::run_forward(call, kernels);
  }
};

void expect_close(const Tensor& actual, const Tensor& wanted, double tolerance, const std::string& what) {
  const Difference d = difference(convert(wanted, DType::f64), convert(actual, DType::f64));
  EXPECT_LE(d.largest, tolerance * std::max(1.0, d.magnitude)) << what << " at element " << d.where;
}

TEST(Amx, EmulatedTilesGiveWhatAvx512Bf16Gives) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  int cases = 0;
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.scalars.score != Score::dot) continue;
    const AttentionCase problem = make_case(spec, DType::bf16);
    Outputs emulated(problem), native(problem);
    emulated.run(problem, cpu::emulated_amx_kernels());
    native.run(problem, cpu::avx512bf16_kernels());
    expect_close(emulated.out, native.out, 0x1p-7, spec.name + ", out");
    expect_close(emulated.lse, native.lse, 1e-5, spec.name + ", lse");
    expect_close(emulated.entropy, native.entropy, 1e-3, spec.name + ", entropy");
    expect_close(emulated.column_mass, native.column_mass, 1e-3, spec.name + ", column_mass");
    ++cases;
  }
  EXPECT_GT(cases, 50);
}

TEST(Amx, AMapChangesNoBitOfTheOutput) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.scalars.score != Score::dot) continue;
    const AttentionCase problem = make_case(spec, DType::bf16);
    Outputs alone(problem), with_map(problem);
    alone.run(problem, cpu::emulated_amx_kernels());
    // Packed sequences have no map, and its cells need rows and keys.
    if (problem.params().q_starts.defined() || with_map.out.view().size(2) < 3 || problem.k.view().size(2) < 2)
      continue;
    with_map.run(problem, cpu::emulated_amx_kernels(), true);
    const auto bytes = [](const Tensor& t) {
      const auto values = t.values<BFloat16>();
      return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    };
    EXPECT_EQ(bytes(alone.out), bytes(with_map.out)) << spec.name;
  }
}

TEST(Amx, EmulatedTilesGiveTheGradientsOfTheReference) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  const Target emulated{.name = "", .backward = [](const BackwardCall& call) {
                          cpu::run_backward(call, cpu::emulated_amx_backward_kernels());
                        }};
  int cases = 0;
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.scalars.score != Score::dot) continue;
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results forward = run_forward(problem, {.name = "reference"}, Statistics::rows);
    if (!backward_refusal(problem, forward, {.name = "avx512bf16"}).empty()) continue;
    for (const std::string& line : violations(problem, run_backward(problem, forward, emulated))) ADD_FAILURE() << line;
    ++cases;
  }
  EXPECT_GT(cases, 50);
}

// Several blocks of rows and tiles of keys, cut into sequences by a limit: pieces under way end at each sequence.
TEST(Amx, EmulatedTilesGiveTheSameBitsForAnyWorkspaceAndThreads) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  AttentionCase problem = make_case(
      {.name = "amx_spans", .heads = 2, .kv_heads = 1, .q_len = 150, .kv_len = 3400, .head_dim = 64}, DType::bf16);
  AttentionParams params = problem.params();
  params.causal = true;
  const auto run = [&](std::size_t limit, int threads) {
    Outputs outputs(problem);
    const Execution execution{.cpu = {.executor = &shared_executor(threads), .workspace_limit = limit}};
    const ForwardCall call = make_forward_call(
        problem.q.view(), problem.k.view(), problem.v.view(), outputs.out, params,
        {.lse = outputs.lse, .entropy = outputs.entropy, .column_mass = outputs.column_mass}, execution);
    const cpu::ForwardPlan plan = cpu::plan_forward(call, cpu::emulated_amx_kernels(), threads);
    EXPECT_EQ(plan.whole(), limit == 0);
    EXPECT_TRUE(limit == 0 || plan.bytes() <= limit) << plan.bytes();
    cpu::run_forward(call, cpu::emulated_amx_kernels());
    return outputs;
  };
  const Outputs wanted = run(0, 1);
  for (std::size_t limit : {std::size_t{0}, std::size_t{6} << 17, std::size_t{7} << 17}) {
    for (int threads : {1, 3}) {
      const Outputs actual = run(limit, threads);
      for (auto tensor : {&Outputs::out, &Outputs::lse, &Outputs::entropy, &Outputs::column_mass}) {
        EXPECT_EQ(std::memcmp((actual.*tensor).view().data, (wanted.*tensor).view().data, (wanted.*tensor).bytes()), 0)
            << "a limit of " << limit << " bytes, " << threads << " threads";
      }
    }
  }
}

// Rows that are carried from chunk to chunk have the bits of one call, and the memory behind the last of them is left
// alone: 150 rows are no whole number of tiles, and those of value_dim 40 no whole number of panels.
TEST(Amx, EmulatedTilesCarryRowsWithTheBitsOfOneCall) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  constexpr std::int64_t kRows = 150, kKeys = 2600, kChunk = 1024, kStride = 64;
  constexpr float kUntouched = 12345.0f;
  for (const std::int64_t value_dim : {40, 64}) {
    for (const std::int64_t window : {-1, 900}) {
      const AttentionCase problem = make_case({.name = "amx_carried",
                                               .batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .q_len = kRows,
                                               .kv_len = kKeys,
                                               .head_dim = 64,
                                               .value_dim = value_dim},
                                              DType::bf16);
      const AttentionParams params{.causal = true, .window_left = window};
      Outputs wanted(problem), actual(problem);
      cpu::run_forward(make_forward_call(problem.q.view(), problem.k.view(), problem.v.view(), wanted.out, params,
                                         {.lse = wanted.lse, .entropy = wanted.entropy}, {}),
                       cpu::emulated_amx_kernels());
      std::vector<float> max(kRows + 1, kUntouched), sum = max, weighted = max, squares = max;
      std::vector<float> out((kRows + 32) * kStride, kUntouched);
      for (std::int64_t key = 0; key <= kKeys; key += kChunk) {
        const bool last = key + kChunk > kKeys;
        const std::int64_t end = std::min(key + kChunk, kKeys);
        ForwardCall call = make_forward_call(problem.q.view(), problem.k.view().slice(2, key, end),
                                             problem.v.view().slice(2, key, end), actual.out, params,
                                             {.lse = actual.lse, .entropy = actual.entropy}, {});
        call.shape.origin = {.is_tile = true, .key = key, .first_position = kKeys - kRows - key};
        call.carried = {.max = max.data(),
                        .sum = sum.data(),
                        .weighted = weighted.data(),
                        .squares = squares.data(),
                        .out = out.data(),
                        .out_stride = kStride,
                        .first = key == 0,
                        .last = last};
        cpu::run_forward(call, cpu::emulated_amx_kernels());
      }
      for (auto tensor : {&Outputs::out, &Outputs::lse, &Outputs::entropy}) {
        EXPECT_EQ(std::memcmp((actual.*tensor).view().data, (wanted.*tensor).view().data, (wanted.*tensor).bytes()), 0)
            << "value_dim " << value_dim << ", window " << window;
      }
      for (const auto* rows : {&max, &sum, &weighted, &squares}) EXPECT_EQ(rows->back(), kUntouched);
      for (std::size_t i = kRows * kStride; i < out.size(); ++i) ASSERT_EQ(out[i], kUntouched) << i;
    }
  }
}

// What keys get from their queries has the same bits wherever keys are cut, as ranks cut them: whether a mask cuts a
// group of rows depends on the cut, the exponential does not.
TEST(Amx, EmulatedGradientsOfKeysHaveTheSameBitsForAnyCut) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  constexpr std::int64_t kLen = 150, kDim = 32;
  const AttentionCase problem =
      make_case({.name = "amx_cut_keys", .heads = 1, .kv_heads = 1, .q_len = kLen, .kv_len = kLen, .head_dim = kDim},
                DType::bf16);
  const ConstTensorView q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
  const AttentionParams params{.causal = true};
  Outputs forward(problem);
  cpu::run_forward(make_forward_call(q, k, v, forward.out, params, {.lse = forward.lse}, {}),
                   cpu::emulated_amx_kernels());
  // Masses of the keys, and their gradients as f32 numbers.
  const auto run = [&](std::int64_t cut) {
    std::vector<float> all;
    for (std::int64_t key = 0; key < kLen; key += cut) {
      const std::int64_t end = std::min(key + cut, kLen);
      Tensor dk(DType::bf16, {1, 1, end - key, kDim}), dv(DType::bf16, {1, 1, end - key, kDim});
      Tensor mass(DType::f32, {1, 1, end - key});
      BackwardCall call = make_backward_call(
          {.q = q, .k = k.slice(2, key, end), .v = v.slice(2, key, end), .out = forward.out, .lse = forward.lse},
          {.out = q}, {.k = dk, .v = dv, .column_mass = mass}, params, {});
      call.shape.origin = {.is_tile = true, .key = key, .first_position = -key};
      cpu::run_backward(call, cpu::emulated_amx_backward_kernels());
      for (std::int64_t i = 0; i < end - key; ++i) {
        all.push_back(mass.values<float>()[static_cast<std::size_t>(i)]);
        for (std::size_t d = 0; d < kDim; ++d) {
          const std::size_t at = static_cast<std::size_t>(i) * kDim + d;
          all.push_back(static_cast<float>(dk.values<BFloat16>()[at]));
          all.push_back(static_cast<float>(dv.values<BFloat16>()[at]));
        }
      }
    }
    return all;
  };
  const std::vector<float> whole = run(kLen);
  for (const std::int64_t cut : {19, 40, 64, 75}) EXPECT_EQ(run(cut), whole) << "runs of " << cut << " keys";
}

// Several blocks of queries and keys: in one pass, and under a limit once for the keys and once for the queries.
TEST(Amx, EmulatedGradientsHaveTheSameBitsForAnyWorkspaceAndThreads) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  const auto whole = [](const BackwardCall& call) { cpu::run_backward(call, cpu::emulated_amx_backward_kernels()); };
  const auto limited = [](const BackwardCall& call) {
    BackwardCall tight = call;
    tight.execution.cpu.workspace_limit = std::size_t{1} << 20;
    EXPECT_TRUE(cpu::plan_backward(tight, cpu::emulated_amx_backward_kernels(), 1).two_sweeps);
    cpu::run_backward(tight, cpu::emulated_amx_backward_kernels());
  };
  const AttentionCase problem = make_case({.name = "amx_backward_limits",
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .q_len = 150,
                                           .kv_len = 700,
                                           .head_dim = 72,
                                           .value_dim = 40,
                                           .scalars = {.causal = true}},
                                          DType::bf16);
  const Results forward = run_forward(problem, {.name = "reference"}, Statistics::rows);
  const Results wanted = run_backward(problem, forward, {.name = "", .backward = whole});
  for (void (*backward)(const BackwardCall&) : {+whole, +limited}) {
    for (int threads : {1, 3}) {
      const Target target{.name = "", .executor = &shared_executor(threads), .backward = backward};
      for (const auto& [name, tensor] : run_backward(problem, forward, target)) {
        EXPECT_EQ(std::memcmp(tensor.view().data, wanted.at(name).view().data, tensor.bytes()), 0)
            << name << (backward == +limited ? ", limited, " : ", ") << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace rootdk::test
