#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
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

TEST(ThreadPool, AThrowingTaskIsAnErrorOfTheCall) {
  for (int threads : {1, 2, 5}) {
    Executor& pool = shared_executor(threads);
    for (int attempt = 0; attempt < 100; ++attempt) {
      std::atomic<int> begun = 0;
      try {
        pool.parallel_for(1000, [&](std::int64_t i) {
          ++begun;
          if (i % 100 == 7) throw std::runtime_error("task " + std::to_string(i));
        });
        ADD_FAILURE() << "no error";
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), testing::MatchesRegex("task [0-9]*7"));
      }
      EXPECT_GE(begun.load(), 8 - threads);
      EXPECT_LE(begun.load(), 1000);
      expect_each_once(pool, 37);
    }
  }
}

TEST(ThreadPool, TasksThatHaveNotBegunAreSkippedAfterAnError) {
  int begun = 0;
  const auto fails_at_three = [&](std::int64_t i) {
    ++begun;
    if (i == 3) throw Error("three");
  };
  EXPECT_THROW(shared_executor(1).parallel_for(1000, fails_at_three), Error);
  EXPECT_EQ(begun, 4);
}

// The plain interface, too: a host program may hand its own tasks to the library's pool.
TEST(ThreadPool, AThrowingPlainTaskLeavesThePoolSound) {
  Executor& pool = shared_executor(3);
  for (int attempt = 0; attempt < 100; ++attempt) {
    EXPECT_THROW(pool.run(
                     50, [](void*, std::int64_t i) { i % 5 == 0 ? throw std::bad_alloc() : void(); }, nullptr),
                 std::bad_alloc);
    expect_each_once(pool, 37);
  }
}

// After an error on the calling thread its calls are spread over the threads again.
TEST(ThreadPool, TheCallerLeavesThePoolWithItsError) {
  Executor& pool = shared_executor(2);
  const std::thread::id caller = std::this_thread::get_id();
  EXPECT_THROW(pool.parallel_for(2, [&](std::int64_t) { throw Error("both"); }), Error);
  // With the caller marked as one of the pool's threads for ever, no other thread would get a task.
  std::atomic<bool> spread = false;
  for (int attempt = 0; attempt < 100000 && !spread; ++attempt) {
    pool.parallel_for(8, [&](std::int64_t) {
      if (std::this_thread::get_id() != caller) spread = true;
      std::this_thread::yield();
    });
  }
  EXPECT_TRUE(spread.load());
}

TEST(ThreadPool, ErrorsOfNestedCallsReachTheCaller) {
  Executor& pool = shared_executor(3);
  EXPECT_THROW(pool.parallel_for(8,
                                 [&](std::int64_t) {
                                   pool.parallel_for(5, [](std::int64_t i) {
                                     if (i == 4) throw Error("inner");
                                   });
                                 }),
               Error);
  expect_each_once(pool, 100);
}

// A host's pool that would end the program if an exception reached its threads.
class HostPool final : public Executor {
 public:
  int threads() const override { return 3; }
  void run(std::int64_t count, Task task, void* context) noexcept override {
    std::vector<std::thread> threads;
    for (std::int64_t i = 0; i < count; ++i) threads.emplace_back([=] { task(context, i); });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(Executor, ExceptionsDoNotReachTheThreadsOfAHostsPool) {
  HostPool pool;
  EXPECT_THROW(pool.parallel_for(6,
                                 [](std::int64_t i) {
                                   if (i > 2) throw Error("a task");
                                 }),
               Error);
  expect_each_once(pool, 6);
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
