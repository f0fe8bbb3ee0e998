#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "rootdk/executor.h"

namespace rootdk::cpu {

// Runs body(worker, task) for every task in [0, tasks) on at most `workers` threads at once. A worker is on one thread
// at a time, so that working memory can belong to it. Where a task throws, those that have not begun are skipped.
template <class Body>
void spread_tasks(Executor& executor, int workers, std::int64_t tasks, Body body) {
  if (workers == 1 || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(std::int64_t{0}, task);
    return;
  }
  std::atomic<std::int64_t> next{0};
  executor.parallel_for(std::min<std::int64_t>(workers, tasks), [&](std::int64_t worker) {
    try {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(worker, task);
    } catch (...) {
      next.store(tasks, std::memory_order_relaxed);
      throw;
    }
  });
}

// The same with body(worker, task, next): a thread takes its next task before it runs the one it has, so that it can
// ask for what that task will need. `next` is `tasks` where there is none.
template <class Body>
void spread_tasks_ahead(Executor& executor, int workers, std::int64_t tasks, Body body) {
  if (workers == 1 || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(std::int64_t{0}, task, task + 1);
    return;
  }
  std::atomic<std::int64_t> free{0};
  const auto take = [&] { return std::min(free.fetch_add(1, std::memory_order_relaxed), tasks); };
  executor.parallel_for(std::min<std::int64_t>(workers, tasks), [&](std::int64_t worker) {
    try {
      for (std::int64_t task = take(), next; task < tasks; task = next) {
        next = take();
        body(worker, task, next);
      }
    } catch (...) {
      free.store(tasks, std::memory_order_relaxed);
      throw;
    }
  });
}

}  // namespace rootdk::cpu
