#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "core/check.h"
#include "core/environment.h"
#include "rootdk/executor.h"

namespace rootdk {
namespace {

// True on the pool's own threads, where a nested parallel call runs in place instead of waiting for itself.
thread_local bool inside_pool = false;

// One job at a time: the caller works along with the threads, and indices are handed out by a counter.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) {
#if defined(__EMSCRIPTEN__)
    threads = 1;  // a page opened from a file gets no threads: the caller does all the work
#endif
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
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
    {
      std::lock_guard lock(mutex_);
      job_ = {task, context, count};
      next_.store(0, std::memory_order_relaxed);
      busy_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    inside_pool = true;
    take_indices(job_);
    inside_pool = false;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  struct Job {
    Task task = nullptr;
    void* context = nullptr;
    std::int64_t count = 0;
  };

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void take_indices(const Job& job) {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.task(job.context, i);
  }

  void work() {
    inside_pool = true;
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      const Job job = job_;
      lock.unlock();
      take_indices(job);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex callers_;  // calls from several threads take turns
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job job_;
  std::atomic<std::int64_t> next_{0};
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

int usable_threads() {
#if defined(__EMSCRIPTEN__)
  return 1;
#else
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
#endif
}

struct Pools {
  std::mutex mutex;
  std::map<int, std::unique_ptr<ThreadPool>> by_threads;
  std::atomic<Executor*> usual{nullptr};  // the one of default_executor(), which every call asks for: without the lock
};

// Never destroyed, as what immortal() makes. A fork copies the calling thread alone: in the child the parent's pools
// have no threads, and nobody opens their locks. The child leaves them as they are, and begins with none.
Pools& this_process_pools() {
  static Pools* pools = nullptr;
  static const int registered = [] {
    pools = new Pools;
    return pthread_atfork(nullptr, nullptr, [] { pools = new Pools; });
  }();
  require(registered == 0, "executor: pthread_atfork failed with ", registered);
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
