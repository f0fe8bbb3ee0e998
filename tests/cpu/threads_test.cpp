// Threads: the same bits for any number of them and for any batch around a row, calls from several threads at once, and
// executors of the caller's own.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "conformance/cases.h"
#include "cpu/spread_tasks.h"
#include "cpu/targets.h"

namespace rootdk::test {
namespace {

std::vector<std::string> runnable_targets() {
  std::vector<std::string> names;
  for (const cpu::Target& target : cpu::targets()) {
    if (target.missing().empty()) names.emplace_back(target.name);
  }
  return names;
}

// Several blocks of rows, several tiles of keys, heads in groups, and every way a tile can be cut.
std::vector<CaseSpec> thread_cases() {
  return {
      {.name = "threads_plain", .batch = 2, .heads = 3, .q_len = 130, .kv_len = 700, .head_dim = 40},
      {.name = "threads_causal_groups",
       .heads = 6,
       .kv_heads = 2,
       .q_len = 210,
       .kv_len = 530,
       .head_dim = 64,
       .value_dim = 24,
       .scalars = {.causal = true, .dropout = 0.2, .seed = 5},
       .sinks = true},
      {.name = "threads_many_short", .batch = 19, .heads = 2, .q_len = 17, .kv_len = 23, .head_dim = 32},
      {.name = "threads_packed",
       .heads = 2,
       .q_len = 300,
       .kv_len = 300,
       .head_dim = 64,
       .scalars = {.causal = true},
       .q_starts = {0, 7, 7, 130, 300},
       .kv_starts = {0, 7, 7, 130, 300}},
      {.name = "threads_pooled",
       .batch = 2,
       .heads = 2,
       .q_len = 120,
       .kv_len = 600,
       .scalars = {.window_left = 90},
       .pooled_rows = 7,
       .pooled_columns = 11,
       .weight_rows = {3, 119}},
  };
}

void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(std::memcmp(tensor.view().data, b.at(name).view().data, tensor.bytes()), 0) << what << ": " << name;
  }
}

class CpuThreads : public testing::TestWithParam<std::string> {};

TEST_P(CpuThreads, AnyNumberGivesTheSameBits) {
  for (const CaseSpec& spec : thread_cases()) {
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results one = run_forward(problem, {.name = GetParam(), .executor = &shared_executor(1)});
    for (int threads : {2, 3, 7}) {
      const Results many = run_forward(problem, {.name = GetParam(), .executor = &shared_executor(threads)});
      expect_same_bits(one, many, spec.name + " on " + std::to_string(threads) + " threads");
    }
  }
}

// Sequence 0 of a batch of three, alone.
TEST_P(CpuThreads, TheBatchAroundARowDoesNotMatter) {
  CaseSpec spec{.name = "batch_of_three", .batch = 3, .heads = 2, .q_len = 133, .kv_len = 300, .head_dim = 48};
  spec.scalars.causal = true;
  AttentionCase three = make_case(spec, DType::bf16);
  AttentionCase alone = make_case(spec, DType::bf16);
  for (DataTensor* tensor : {&alone.q, &alone.k, &alone.v}) {
    *tensor = DataTensor(tensor->view().slice(0, 0, 1), false);
  }
  const Results all = run_forward(three, {.name = GetParam()}, Statistics::none);
  const Results first = run_forward(alone, {.name = GetParam()}, Statistics::none);
  EXPECT_EQ(std::memcmp(all.at("out").view().data, first.at("out").view().data, first.at("out").bytes()), 0);
}

TEST_P(CpuThreads, SeveralCallersAtOnce) {
  const AttentionCase problem = make_case(thread_cases()[1], DType::bf16);
  const Results alone = run_forward(problem, {.name = GetParam(), .executor = &shared_executor(1)});
  std::vector<Results> results(4);
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    callers.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        results[i] = run_forward(problem, {.name = GetParam(), .executor = &shared_executor(i % 2 ? 3 : 2)});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const Results& result : results) expect_same_bits(alone, result, "a caller among four");
}

// Claims many threads and runs tasks on the caller's, last first.
class BackwardsExecutor final : public Executor {
 public:
  int threads() const override { return 5; }
  void run(std::int64_t count, Task task, void* context) override {
    for (std::int64_t i = count - 1; i >= 0; --i) task(context, i);
  }
};

TEST_P(CpuThreads, AnExecutorOfTheCallersOwn) {
  BackwardsExecutor executor;
  for (const CaseSpec& spec : thread_cases()) {
    const AttentionCase problem = make_case(spec, DType::bf16);
    const Results one = run_forward(problem, {.name = GetParam(), .executor = &shared_executor(1)});
    expect_same_bits(one, run_forward(problem, {.name = GetParam(), .executor = &executor}), spec.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuThreads, testing::ValuesIn(runnable_targets()),
                         [](const auto& info) { return info.param; });

// A thread that takes its next task early runs that one next, every task runs once, and an error ends the call.
TEST(Threads, TasksThatAreTakenEarlyRunOnce) {
  for (const int workers : {1, 2, 3}) {
    for (const std::int64_t tasks : {0, 1, 2, 3, 50}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::vector<std::int64_t> expected(static_cast<std::size_t>(workers), -1);
      std::atomic<int> surprises{0};
      cpu::spread_tasks_ahead(shared_executor(3), workers, tasks,
                              [&](std::int64_t worker, std::int64_t task, std::int64_t next) {
                                std::int64_t& mine = expected[static_cast<std::size_t>(worker)];
                                surprises += (mine >= 0 && mine != task) || next <= task || next > tasks;
                                mine = next;
                                ++runs[static_cast<std::size_t>(task)];
                              });
      EXPECT_EQ(surprises, 0) << workers << " workers, " << tasks << " tasks";
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
  std::atomic<int> ran{0};
  const auto fails = [&](std::int64_t, std::int64_t task, std::int64_t) {
    ++ran;
    if (task == 3) throw std::runtime_error("task 3");
  };
  EXPECT_THROW(cpu::spread_tasks_ahead(shared_executor(2), 2, 1000000, fails), std::runtime_error);
  EXPECT_LT(ran, 1000000);
}

}  // namespace
}  // namespace rootdk::test
