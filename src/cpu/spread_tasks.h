#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "rootdk/executor.h"

namespace rootdk::cpu {

<<<<<<< HEAD
// Runs body(slot, task) for every task in [0, tasks) on at most `slots` threads at once; a slot is on one thread at a
// time, so that working memory can belong to it. Where a task throws, those that have not begun are skipped.
=======
// Runs body(worker, task) for every task in [0, tasks) on at most `workers` threads at once. A worker is on one thread
// at a time, so that working memory can belong to it.
>>>>>>> docs3
template <class Body>
void spread_tasks(Executor& executor, int workers, std::int64_t tasks, Body body) {
  if (workers == 1 || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(std::int64_t{0}, task);
    return;
  }
  std::atomic<std::int64_t> next{0};
<<<<<<< HEAD
  executor.parallel_for(std::min<std::int64_t>(slots, tasks), [&](std::int64_t slot) {
    try {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(slot, task);
    } catch (...) {
      next.store(tasks, std::memory_order_relaxed);
      throw;
    }
=======
  executor.parallel_for(std::min<std::int64_t>(workers, tasks), [&](std::int64_t worker) {
    for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(worker, task);
>>>>>>> docs3
  });
}

}  // namespace rootdk::cpu
