#include "models_api/interruptible.h"

#include <chrono>

#include "core/check.h"

namespace rootdk::models_api {
namespace {

std::atomic<rootdk_interrupt_check> installed = nullptr;

constexpr std::int64_t kBetweenChecks = 50'000'000;  // nanoseconds

std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

InterruptibleExecutor::InterruptibleExecutor(Executor* inner)
    : inner_(inner ? *inner : default_executor()), check_(installed), last_asked_(nanoseconds()) {}

bool InterruptibleExecutor::asked_to_stop() {
  const std::int64_t now = nanoseconds();
  if (now - last_asked_ < kBetweenChecks) return false;
  last_asked_ = now;
  return check_() != 0;
}

void InterruptibleExecutor::run(std::int64_t count, Task task, void* context) {
  if (!check_) return inner_.run(count, task, context);
  // Asked here too: other threads may take every task.
  if (asked_to_stop()) stopped_ = true;
  require(!stopped_, "interrupted: the call was asked to end");
  const std::thread::id caller = std::this_thread::get_id();
  inner_.parallel_for(count, [&](std::int64_t index) {
    if (stopped_.load(std::memory_order_relaxed)) return;
    if (std::this_thread::get_id() == caller && asked_to_stop()) {
      stopped_ = true;
      return;
    }
    task(context, index);
  });
  require(!stopped_, "interrupted: the call was asked to end");
}

}  // namespace rootdk::models_api

void rootdk_on_interrupt(rootdk_interrupt_check check) { rootdk::models_api::installed = check; }
