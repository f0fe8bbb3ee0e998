#pragma once

// Lets whoever called a function of the C ABI end it while it computes.

#include <atomic>
#include <thread>

#include "rootdk/executor.h"
#include "rootdk/models_c_api.h"

namespace rootdk::models_api {

// Runs tasks on another executor, and asks between those of the calling thread, a few times a second, whether to go on.
// Where the answer is no, the tasks that are left are skipped and run() throws rootdk::Error, now and ever after.
class InterruptibleExecutor : public Executor {
 public:
  explicit InterruptibleExecutor(Executor* inner);  // null: the default pool

  int threads() const override { return inner_.threads(); }
  void run(std::int64_t count, Task task, void* context) override;

 private:
  bool asked_to_stop();

  Executor& inner_;
  const rootdk_interrupt_check check_;
  std::atomic<bool> stopped_ = false;
  std::int64_t last_asked_ = 0;  // nanoseconds; of the calling thread alone
};

}  // namespace rootdk::models_api
