#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>

#include "rootdk/export.h"

namespace rootdk {

// Carries the first exception of the tasks of one parallel call to its caller. It takes no memory, and a call without
// exceptions pays for one flag.
class TaskErrors {
 public:
  // Runs one task, unless another has already thrown.
  template <class Body>
  void guard(Body&& body) noexcept {
    if (any()) return;
    try {
      body();
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_relaxed)) first_ = std::current_exception();
    }
  }
  bool any() const noexcept { return failed_.load(std::memory_order_relaxed); }
  // On the caller's thread, when all tasks have ended.
  void rethrow() {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::exception_ptr first_;
};

// Runs task(context, index) once for each index in [0, count), in any order, on any threads, and returns when all have
// ended. Plug in the host program's own pool by deriving from it; results do not depend on which executor ran them.
// The library hands over tasks that do not throw. They may be run from several calls at once, and a task never starts
// another parallel call.
class ROOTDK_API Executor {
 public:
  using Task = void (*)(void* context, std::int64_t index);

  virtual ~Executor() = default;
  virtual int threads() const = 0;
  virtual void run(std::int64_t count, Task task, void* context) = 0;

  // Convenience over run() for any callable that takes the index. The callable may throw: the exception does not reach
  // the threads of the pool, tasks that have not begun are skipped, and the caller gets the first exception once no
  // task runs any more.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    struct Call {
      std::remove_reference_t<Body>& body;
      TaskErrors errors = {};
    } call{body};
    run(
        count,
        [](void* context, std::int64_t index) noexcept {
          auto& tasks = *static_cast<Call*>(context);
          tasks.errors.guard([&] { tasks.body(index); });
        },
        &call);
    call.errors.rethrow();
  }
};

// The library's own pool, as wide as ROOTDK_THREADS says. Default: the hardware threads that this process may use, by
// its affinity and by the CPU quota of its control groups.
ROOTDK_API Executor& default_executor();

// A pool of the given width, shared by all who ask for the same width; 1 runs everything on the calling thread.
ROOTDK_API Executor& shared_executor(int threads);

}  // namespace rootdk
