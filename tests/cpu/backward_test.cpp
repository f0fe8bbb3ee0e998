// The backward pass on several blocks: right, and with the same bits for any number of threads, any batch around a
// sequence and any workspace limit; limits that are kept to.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "conformance/cases.h"
#include "conformance/conformance.h"
#include "cpu/backward.h"
#include "cpu/backward_plan.h"
#ifdef ROOTDK_EMULATED_AMX
#include "cpu/amx_emulated.h"
#include "cpu/processor.h"
#endif
#include "cpu/targets.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

constexpr std::size_t kMebi = std::size_t{1} << 20;

struct Kernels {
  std::string name;
  bool bf16_products;
  void (*run)(const BackwardCall& call) = nullptr;  // null: the implementation of this name

  Target on(Executor* executor = nullptr) const {
    return {.name = run ? "" : name, .executor = executor, .backward = run};
  }
};
std::ostream& operator<<(std::ostream& stream, const Kernels& kernels) { return stream << kernels.name; }

std::vector<Kernels> runnable_kernels() {
  std::vector<Kernels> all;
  for (const cpu::Target& target : cpu::targets()) {
    if (target.missing().empty()) all.push_back({std::string(target.name), target.bf16_products});
  }
#ifdef ROOTDK_EMULATED_AMX
  if (cpu::processor().avx512bf16) {
    all.push_back({"emulated_amx", true,
                   [](const BackwardCall& call) { cpu::run_backward(call, cpu::emulated_amx_backward_kernels()); }});
  }
#endif
  return all;
}

// Several blocks of queries and of keys, heads in groups, every kind of gradient, alone and summed over pairs.
std::vector<CaseSpec> backward_cases() {
  return {
      {.name = "backward_plain", .batch = 2, .heads = 3, .q_len = 430, .kv_len = 500, .head_dim = 40},
      {.name = "backward_causal_groups",
       .heads = 6,
       .kv_heads = 2,
       .q_len = 110,
       .kv_len = 430,
       .head_dim = 64,
       .value_dim = 24,
       .scalars = {.causal = true, .dropout = 0.2, .seed = 5},
       .relative_heads = 1,
       .relative_entries = 90,
       .alibi = true,
       .sinks = true,
       .grad_lse = true,
       .grad_entropy = true},
      {.name = "backward_many_short", .batch = 9, .heads = 2, .q_len = 17, .kv_len = 23, .head_dim = 32},
      {.name = "backward_packed",
       .heads = 2,
       .q_len = 500,
       .kv_len = 500,
       .scalars = {.causal = true, .window_left = 150},
       .q_starts = {0, 7, 7, 130, 500},
       .kv_starts = {0, 7, 7, 130, 500}},
      {.name = "backward_block_sparse",
       .q_len = 250,
       .kv_len = 400,
       .scalars = {.block_q = 64, .block_kv = 80},
       .block_mask = {1, 2, 4, 5},
       .mask_keep = 0.4},
      {.name = "backward_shared_bias", .batch = 3, .q_len = 250, .kv_len = 300, .bias = {1, 1, 250, 300}},
      {.name = "backward_bias_of_rows", .batch = 2, .q_len = 250, .kv_len = 300, .bias = {1, 2, 250, 1}},
      {.name = "backward_bias_of_keys",
       .batch = 2,
       .q_len = 250,
       .kv_len = 300,
       .bias = {1, 2, 1, 300},
       .bias_in_data_type = true},
  };
}

Results forward_of(const AttentionCase& problem) { return run_forward(problem, {}, Statistics::rows); }

void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(std::memcmp(tensor.view().data, b.at(name).view().data, tensor.bytes()), 0) << what << ": " << name;
  }
}

// Tiles with a NaN in them are summed in another order.
void expect_close(const Results& a, const Results& b) {
  for (const auto& [name, tensor] : a) {
    const Difference d = difference(tensor, b.at(name));
    EXPECT_LE(d.largest, 0x1p-6 * d.magnitude) << name << " at element " << d.where;
  }
}

// Claims many threads and runs tasks on the caller's, last first.
class BackwardsExecutor final : public Executor {
 public:
  int threads() const override { return 5; }
  void run(std::int64_t count, Task task, void* context) override {
    for (std::int64_t i = count - 1; i >= 0; --i) task(context, i);
  }
};

class CpuBackward : public testing::TestWithParam<Kernels> {};

TEST_P(CpuBackward, AnyNumberOfThreadsGivesTheSameBits) {
  BackwardsExecutor backwards;
  for (const CaseSpec& spec : backward_cases()) {
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results forward = forward_of(problem);
    const Results one = run_backward(problem, forward, GetParam().on(&shared_executor(1)));
    for (int threads : {2, 3, 7}) {
      const Results many = run_backward(problem, forward, GetParam().on(&shared_executor(threads)));
      expect_same_bits(one, many, spec.name + " on " + std::to_string(threads) + " threads");
    }
    expect_same_bits(one, run_backward(problem, forward, GetParam().on(&backwards)),
                     spec.name + " on an executor of the caller's own");
  }
}

// The conformance grid has shapes of one block; these have several.
TEST_P(CpuBackward, ManyBlocksGiveWhatTheReferenceGives) {
  for (const CaseSpec& spec : backward_cases()) {
    const AttentionCase problem = make_case(spec, GetParam().bf16_products ? DType::bf16 : DType::f32);
    const Results forward = run_forward(problem, {.name = "reference"}, Statistics::rows);
    for (const std::string& line : violations(problem, run_backward(problem, forward, GetParam().on()))) {
      ADD_FAILURE() << line;
    }
  }
}

// Sequence 0 of a batch of three, alone.
TEST_P(CpuBackward, TheBatchAroundASequenceDoesNotMatter) {
  CaseSpec spec{.name = "batch_of_three", .batch = 3, .heads = 2, .q_len = 133, .kv_len = 300, .head_dim = 48};
  spec.scalars.causal = true;
  const AttentionCase three = make_case(spec, DType::bf16);
  AttentionCase alone = make_case(spec, DType::bf16);
  for (DataTensor* tensor : {&alone.q, &alone.k, &alone.v, &alone.grad_out}) {
    *tensor = DataTensor(tensor->view().slice(0, 0, 1), false);
  }
  const Results all = run_backward(three, forward_of(three), GetParam().on());
  const Results first = run_backward(alone, forward_of(alone), GetParam().on());
  for (const auto& [name, tensor] : first) {
    EXPECT_EQ(std::memcmp(all.at(name).view().data, tensor.view().data, tensor.bytes()), 0) << name;
  }
}

// Fills rows [begin, end) of a tensor with NaN and infinities.
void plant(DataTensor& tensor, std::int64_t begin, std::int64_t end) {
  const TensorView view = tensor.view();
  auto* data = static_cast<BFloat16*>(view.data);
  for (std::int64_t h = 0; h < view.size(1); ++h) {
    for (std::int64_t i = begin; i < end; ++i) {
      data[h * view.stride(1) + i * view.stride(2) + 3] = BFloat16(i % 2 ? NAN : INFINITY);
    }
  }
}

// Keys that no query sees and queries that see no key hold NaN and infinities: no gradient may show it.
TEST_P(CpuBackward, NothingMaskedLeaks) {
  constexpr std::int64_t kQueries = 100, kKeys = 260, kSeeing = 90, kSeen = 201;
  CaseSpec spec{.name = "masked_nan", .q_len = kQueries, .kv_len = kKeys, .head_dim = 40};
  spec.mask = {1, 1, kQueries, kKeys};
  spec.scalars.logits.softcap = 20;
  AttentionCase clean = make_case(spec, DType::bf16);
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (std::int64_t j = 0; j < kKeys; ++j) {
      if (i >= kSeeing || j >= kSeen) clean.mask.view().as<std::uint8_t>()[i * kKeys + j] = 0;
    }
  }
  AttentionCase planted = clean.converted(DType::bf16);
  plant(planted.k, kSeen, kKeys);
  plant(planted.v, kSeen, kKeys);
  plant(planted.q, kSeeing, kQueries);
  plant(planted.grad_out, kSeeing, kQueries);
  const Results wanted = run_backward(clean, forward_of(clean), GetParam().on());
  expect_close(wanted, run_backward(planted, forward_of(planted), GetParam().on()));
  const Tensor grad_q = convert(wanted.at("grad_q"), DType::f32);
  for (float x : grad_q.values<float>().last(40)) EXPECT_EQ(x, 0.0f);
}

// 1 / |q| is beyond f32 and the gradient, which has the small scale too, is not.
TEST_P(CpuBackward, GradientsOfShortVectorsOverflowOnlyAtTheEnd) {
  if (GetParam().bf16_products) GTEST_SKIP() << "it has no cosine score";
  constexpr double kShort = 0x1p-138;
  CaseSpec spec{.name = "short", .q_len = 5, .kv_len = 9, .head_dim = 8};
  spec.scalars.score = Score::cosine;
  spec.scalars.logits.scale = 0x1p-20;
  AttentionCase problem = make_case(spec, DType::f32);
  for (float& x : problem.q.memory().values<float>()) x = static_cast<float>(std::round(x * 64) / 64 * kShort);
  const Results saved = forward_of(problem);
  const Results expected = run_backward(problem, saved, {.name = "reference"});
  const Results found = run_backward(problem, saved, GetParam().on());
  for (std::size_t n = 0; n < 5 * 8; ++n) {
    const double wanted = expected.at("grad_q").values<double>()[n];
    ASSERT_TRUE(std::isfinite(wanted));
    ASSERT_GT(std::abs(wanted), 0x1p100);
    EXPECT_NEAR(found.at("grad_q").values<double>()[n] / wanted, 1.0, 1e-4) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuBackward, testing::ValuesIn(runnable_kernels()),
                         [](const auto& info) { return info.param.name; });

// One f32 problem whose gradients are compared bit by bit between workspace limits.
struct Problem {
  Tensor q, k, v, grad_out, bias, sinks, slopes;
  Tensor out, lse, grad_q, grad_k, grad_v, grad_bias, grad_sinks, grad_slopes, column_mass;
  AttentionParams params;

  explicit Problem(std::int64_t q_len, std::int64_t kv_len)
      : q(random_tensor(DType::f32, {2, 4, q_len, 64}, 1)),
        k(random_tensor(DType::f32, {2, 2, kv_len, 64}, 2)),
        v(random_tensor(DType::f32, {2, 2, kv_len, 64}, 3)),
        grad_out(random_tensor(DType::f32, {2, 4, q_len, 64}, 4)),
        bias(random_tensor(DType::f32, {1, 4, 1, kv_len}, 5)),
        sinks(random_tensor(DType::f32, {4}, 6)),
        slopes(random_tensor(DType::f32, {4}, 7)),
        out(DType::f32, {2, 4, q_len, 64}),
        lse(DType::f32, {2, 4, q_len}),
        grad_q(DType::f32, {2, 4, q_len, 64}),
        grad_k(DType::f32, {2, 2, kv_len, 64}),
        grad_v(DType::f32, {2, 2, kv_len, 64}),
        grad_bias(DType::f32, {1, 4, 1, kv_len}),
        grad_sinks(DType::f32, {4}),
        grad_slopes(DType::f32, {4}),
        column_mass(DType::f32, {2, 4, kv_len}) {
    params.causal = true;
    params.bias = bias;
    params.logits.sinks = sinks;
    params.logits.alibi_slopes = slopes;
    attention(q, k, v, out, params, {.lse = lse});
  }

  AttentionSaved saved() const { return {.q = q, .k = k, .v = v, .out = out, .lse = lse}; }
  AttentionGradients gradients() {
    return {.q = grad_q,
            .k = grad_k,
            .v = grad_v,
            .bias = grad_bias,
            .alibi_slopes = grad_slopes,
            .sinks = grad_sinks,
            .column_mass = column_mass};
  }
  std::vector<std::byte> run(const Execution& execution) {
    attention_backward(saved(), {.out = grad_out}, gradients(), params, execution);
    std::vector<std::byte> bits;
    for (const Tensor* tensor : {&grad_q, &grad_k, &grad_v, &grad_bias, &grad_sinks, &grad_slopes, &column_mass}) {
      const auto* data = tensor->view().as<std::byte>();
      bits.insert(bits.end(), data, data + tensor->bytes());
    }
    return bits;
  }
};

TEST(BackwardWorkspace, EveryLimitGivesTheSameBits) {
  Problem problem(250, 900);
  const std::vector<std::byte> wanted = problem.run({.cpu = {.executor = &shared_executor(1)}});
  for (std::size_t limit : {kMebi, kMebi * 3 / 2, 2 * kMebi, 3 * kMebi, 8 * kMebi}) {
    for (int threads : {1, 3}) {
      EXPECT_EQ(problem.run({.cpu = {.executor = &shared_executor(threads), .workspace_limit = limit}}), wanted)
          << limit << " bytes, " << threads << " threads";
    }
  }
}

TEST(BackwardWorkspace, PlansKeepToTheLimit) {
  Problem problem(300, 5000);
  for (const cpu::Target& target : cpu::targets()) {
    if (target.bf16_products) continue;
    for (std::size_t limit : {kMebi, 4 * kMebi, 30 * kMebi}) {
      const BackwardCall call = make_backward_call(problem.saved(), {.out = problem.grad_out}, problem.gradients(),
                                                   problem.params, {.cpu = {.workspace_limit = limit}});
      for (int threads : {1, 2, 16}) {
        EXPECT_LE(cpu::plan_backward(call, target.backward(), threads).bytes(), limit)
            << target.name << " on " << threads << " threads";
      }
    }
  }
}

TEST(BackwardWorkspace, TooSmallALimitIsRefusedWithTheNumbers) {
  Problem problem(50, 60);
  try {
    problem.run({.cpu = {.workspace_limit = 5000}});
    FAIL() << "5000 bytes were enough";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("workspace_limit 5000 bytes is below the "), std::string::npos)
        << error.what();
  }
}

TEST(BackwardWorkspace, GrowsWithTheLengthNotItsSquare) {
  // Only the plan is made.
  Tensor tensor(DType::f32, {1, 1, 131072, 64}), gradient(DType::f32, {1, 1, 131072, 64});
  Tensor rows(DType::f32, {1, 1, 131072});
  const BackwardCall call = make_backward_call({.q = tensor, .k = tensor, .v = tensor, .out = tensor, .lse = rows},
                                               {.out = tensor}, {.q = gradient, .k = gradient, .v = gradient}, {}, {});
  for (const cpu::Target& target : cpu::targets()) {
    if (target.bf16_products) continue;
    EXPECT_LE(cpu::plan_backward(call, target.backward(), 1).bytes(), 200 * kMebi) << target.name;
  }
}

}  // namespace
}  // namespace rootdk::test
