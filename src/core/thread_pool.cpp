#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/cgroup.h"
#include "core/check.h"
#include "core/environment.h"
#include "rootdk/executor.h"

namespace rootdk {
namespace {

void pause_processor() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True on the pool's own threads, where a nested parallel call runs in place instead of waiting for itself.
thread_local bool inside_pool = false;

// The caller counts as one of them while it works along.
class InsidePool {
 public:
  InsidePool() { inside_pool = true; }
  ~InsidePool() { inside_pool = false; }
};

int usable_threads() {
#if defined(__EMSCRIPTEN__)
  return 1;
#else
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  const int count = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  const int quota = cgroup_cpus("/");
  return std::max(1, quota ? std::min(count, quota) : count);
#endif
}

// Waits for `ready` without giving up the processor, for at most kAwake. Products of a model's layers follow each other
// within that time, and waking a sleeping thread takes as long as a product of one token.
constexpr std::chrono::microseconds kAwake{100};
template <class Ready>
void spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
      pause_processor();
    }
  } while (std::chrono::steady_clock::now() < end);
}

// One job at a time: the caller works along with the threads, and indices are handed out by a counter. A thread that
// wakes up after the last index was taken does not join the job, and the caller does not wait for it.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : may_spin_(threads <= usable_threads()) {
#if defined(__EMSCRIPTEN__)
    threads = 1;  // a page opened from a file gets no threads: the caller does all the work
#endif
    try {
      workers_.reserve(static_cast<std::size_t>(threads - 1));
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::bad_alloc&) {
      stop();
      throw;
    } catch (const std::system_error& error) {
      const std::size_t started = workers_.size();
      stop();
      fail("executor: of ", threads - 1, " threads beside the caller's only ", started,
           " could be started: ", error.what());
    }
  }
  ~ThreadPool() override { stop(); }

  int threads() const override { return static_cast<int>(workers_.size()) + 1; }

  void run(std::int64_t count, Task task, void* context) override {
    if (count <= 0) return;
    if (workers_.empty() || count == 1 || inside_pool) {
      for (std::int64_t i = 0; i < count; ++i) task(context, i);
      return;
    }
    std::lock_guard one_caller(callers_);
    TaskErrors errors;
    const Job job{task, context, count, &errors};
    {
      std::lock_guard lock(mutex_);
      job_ = job;
      open_ = true;
      next_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_relaxed);
    }
    wake_.notify_all();
    {
      const InsidePool here;
      take_indices(job);
    }
    wait_for_joined();
    errors.rethrow();
  }

 private:
  struct Job {
    Task task = nullptr;
    void* context = nullptr;
    std::int64_t count = 0;
    TaskErrors* errors = nullptr;
  };

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // Never throws: the caller waits for the threads, and the threads live on, whatever a task does.
  void take_indices(const Job& job) noexcept {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < job.count;) {
      job.errors->guard([&] { job.task(job.context, i); });
    }
  }

  void wait_for_joined() {
    {
      std::lock_guard lock(mutex_);
      open_ = false;
    }
    const auto none_left = [this] { return joined_.load(std::memory_order_relaxed) == 0; };
    if (may_spin_) spin_until(none_left);
    // The lock also makes what the threads wrote visible here.
    std::unique_lock lock(mutex_);
    done_.wait(lock, none_left);
  }

  void work() {
    inside_pool = true;
    std::uint64_t seen = 0;
    const auto called = [&] {
      return stopping_.load(std::memory_order_relaxed) || generation_.load(std::memory_order_relaxed) != seen;
    };
    for (;;) {
      if (may_spin_) spin_until(called);
      std::unique_lock lock(mutex_);
      wake_.wait(lock, called);
      if (stopping_.load(std::memory_order_relaxed)) return;
      seen = generation_.load(std::memory_order_relaxed);
      if (!open_) continue;
      joined_.fetch_add(1, std::memory_order_relaxed);
      const Job job = job_;
      lock.unlock();
      take_indices(job);
      lock.lock();
      if (joined_.fetch_sub(1, std::memory_order_relaxed) == 1) done_.notify_one();
    }
  }

  const bool may_spin_;  // not where the pool has more threads than there are processors
  std::mutex callers_;   // calls from several threads take turns
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  // Written under the lock; atomic where a thread that spins reads them.
  Job job_;
  bool open_ = false;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> joined_{0};  // threads that take the job's indices
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

struct Pools {
  std::mutex mutex;
  std::map<int, std::unique_ptr<ThreadPool>> by_threads;
  std::atomic<Executor*> usual{nullptr};  // the one of default_executor(), which every call asks for: without the lock
};

// Never destroyed, as what immortal() makes. A fork copies the calling thread alone: in the child the parent's pools
// have no threads, and their locks may stay locked. The child does not touch them, and begins with none.
std::atomic<Pools*> all_pools{nullptr};

Pools& this_process_pools() {
  static const bool registered = [] {
    const int error = pthread_atfork(nullptr, nullptr, [] { all_pools.store(nullptr); });
    if (error == ENOMEM) throw std::bad_alloc();
    require(error == 0, "executor: pthread_atfork failed with ", error);
    return true;
  }();
  static_cast<void>(registered);
  Pools* pools = all_pools.load(std::memory_order_acquire);
  if (!pools) {
    auto fresh = std::make_unique<Pools>();
    // Of several threads that come here at once, one is first.
    if (all_pools.compare_exchange_strong(pools, fresh.get())) pools = fresh.release();
  }
  return *pools;
}

}  // namespace

Executor& shared_executor(int threads) {
  require(threads >= 1 && threads <= 4096, "executor: ", threads, " threads are not in 1 to 4096");
  Pools& pools = this_process_pools();
  std::lock_guard lock(pools.mutex);
  std::unique_ptr<ThreadPool>& pool = pools.by_threads[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

Executor& default_executor() {
  std::atomic<Executor*>& usual = this_process_pools().usual;
  Executor* pool = usual.load(std::memory_order_acquire);
  if (!pool) {
    static const int threads = environment().threads ? environment().threads : usable_threads();
    pool = &shared_executor(threads);
    usual.store(pool, std::memory_order_release);
  }
  return *pool;
}

}  // namespace rootdk
