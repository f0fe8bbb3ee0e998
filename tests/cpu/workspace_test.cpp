// The workspace limit: kept to, without a change in the result; and memory that grows with the length, not its square.

#include <gtest/gtest.h>

#include <cstring>

#include "conformance/cases.h"
#include "cpu/forward_plan.h"
#include "cpu/targets.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

constexpr std::size_t kMebi = std::size_t{1} << 20;

struct Problem {
  Tensor q, k, v, out, lse, entropy, column_mass, pooled_map;

  Problem(std::int64_t heads, std::int64_t kv_heads, std::int64_t q_len, std::int64_t kv_len, std::int64_t head_dim)
      : q(random_tensor(DType::f32, {1, heads, q_len, head_dim}, 1)),
        k(random_tensor(DType::f32, {1, kv_heads, kv_len, head_dim}, 2)),
        v(random_tensor(DType::f32, {1, kv_heads, kv_len, head_dim}, 3)),
        out(DType::f32, {1, heads, q_len, head_dim}),
        lse(DType::f32, {1, heads, q_len}),
        entropy(DType::f32, {1, heads, q_len}),
        column_mass(DType::f32, {1, heads, kv_len}),
        pooled_map(DType::f32, {1, heads, 5, 9}) {}

  AttentionStats stats(bool maps) {
    AttentionStats stats{.lse = lse, .entropy = entropy};
    if (maps) {
      stats.column_mass = column_mass;
      stats.pooled_map = pooled_map;
    }
    return stats;
  }
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (const Tensor* tensor : {&out, &lse, &entropy, &column_mass, &pooled_map}) {
      const auto* data = tensor->view().as<std::byte>();
      all.insert(all.end(), data, data + tensor->bytes());
    }
    return all;
  }
};

TEST(Workspace, EveryLimitGivesTheSameBits) {
  for (bool maps : {false, true}) {
    Problem problem(4, 2, 333, 2500, 64);
    const AttentionParams params{.causal = true};
    const auto run = [&](std::size_t limit, int threads) {
      const Execution execution{.cpu = {.executor = &shared_executor(threads), .workspace_limit = limit}};
      attention(problem.q, problem.k, problem.v, problem.out, params, problem.stats(maps), execution);
      return problem.bits();
    };
    const std::vector<std::byte> wanted = run(0, 1);
    for (std::size_t limit : {kMebi * 3 / 4, kMebi, 2 * kMebi, 3 * kMebi, 8 * kMebi}) {
      for (int threads : {1, 3}) EXPECT_EQ(run(limit, threads), wanted) << limit << " bytes, " << threads << " threads";
    }
  }
}

TEST(Workspace, PlansKeepToTheLimit) {
  Problem problem(8, 2, 5000, 40000, 64);
  for (const cpu::Target& target : cpu::targets()) {
    if (target.bf16_products) continue;
    for (std::size_t limit : {kMebi, 4 * kMebi, 30 * kMebi, 100 * kMebi}) {
      for (int threads : {1, 2, 16}) {
        const ForwardCall call = make_forward_call(problem.q, problem.k, problem.v, problem.out, {},
                                                   problem.stats(false), {.cpu = {.workspace_limit = limit}});
        EXPECT_LE(cpu::plan_forward(call, target.kernels(), threads).bytes(), limit)
            << target.name << " on " << threads << " threads";
      }
    }
  }
}

TEST(Workspace, TooSmallALimitIsRefusedWithTheNumbers) {
  Problem problem(1, 1, 500, 2000, 64);
  try {
    attention(problem.q, problem.k, problem.v, problem.out, {}, {}, {.cpu = {.workspace_limit = 5000}});
    FAIL() << "5000 bytes were enough";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("workspace_limit 5000 bytes is below the "), std::string::npos)
        << error.what();
  }
}

TEST(Workspace, GrowsWithTheLengthNotItsSquare) {
  Tensor tensor(DType::f32, {1, 1, 131072, 64}), out(DType::f32, {1, 1, 131072, 64});  // only the plan is made
  const ForwardCall call = make_forward_call(tensor, tensor, tensor, out, {}, {}, {});
  for (const cpu::Target& target : cpu::targets()) {
    if (target.bf16_products) continue;
    for (int threads : {1, 16}) {
      EXPECT_LE(4 * tensor.bytes() + cpu::plan_forward(call, target.kernels(), threads).bytes(), 256 * kMebi)
          << target.name;
    }
  }
}

}  // namespace
}  // namespace rootdk::test
