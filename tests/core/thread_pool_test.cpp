#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "rootdk/error.h"
#include "rootdk/executor.h"

namespace rootdk {
namespace {

// Runs `count` tasks and expects each index once.
void expect_each_once(Executor& executor, std::int64_t count) {
  const auto runs = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(count) + 1);
  executor.parallel_for(count, [&](std::int64_t i) { runs[static_cast<std::size_t>(i)].fetch_add(1); });
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(runs[static_cast<std::size_t>(i)].load(), 1) << i;
}

TEST(ThreadPool, RunsEachIndexOnce) {
  for (int threads : {1, 2, 5}) {
    for (std::int64_t count : {0, 1, 2, 3, 100, 5000}) expect_each_once(shared_executor(threads), count);
  }
}

TEST(ThreadPool, ManySmallJobs) {
  std::atomic<std::int64_t> sum = 0;
  for (int job = 0; job < 3000; ++job) {
    shared_executor(4).parallel_for(3, [&](std::int64_t i) { sum += i; });
  }
  EXPECT_EQ(sum.load(), 9000);
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([] {
      for (int job = 0; job < 200; ++job) expect_each_once(shared_executor(3), 37);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, NestedCallsRunInPlace) {
  std::atomic<int> inner = 0;
  shared_executor(3).parallel_for(
      8, [&](std::int64_t) { shared_executor(3).parallel_for(5, [&](std::int64_t) { ++inner; }); });
  EXPECT_EQ(inner.load(), 40);
}

TEST(ThreadPool, SharedByWidth) {
  EXPECT_EQ(&shared_executor(3), &shared_executor(3));
  EXPECT_NE(&shared_executor(3), &shared_executor(2));
  EXPECT_EQ(shared_executor(3).threads(), 3);
  EXPECT_GE(default_executor().threads(), 1);
  try {
    shared_executor(0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "executor: 0 threads are not in 1 to 4096");
  }
}

TEST(ThreadPool, AForkedProcessHasThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
#endif
  expect_each_once(shared_executor(3), 100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // instead of waiting for threads that are not there
    std::atomic<int> runs = 0;
    shared_executor(3).parallel_for(100, [&](std::int64_t) { ++runs; });
    _exit(runs.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_each_once(shared_executor(3), 100);
}

}  // namespace
}  // namespace rootdk
