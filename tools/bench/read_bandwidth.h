#pragma once

#include <span>

#include "rootdk/executor.h"

namespace rootdk::tools {

// The rate at which the threads of an executor read memory, nothing else being done with it.
class ReadMeter {
 public:
  // The memory should be far larger than the caches.
  ReadMeter(std::span<const std::byte> memory, Executor& executor) : memory_(memory), executor_(executor) {}

  void measure();
  double best_bytes_per_second() const { return best_; }

 private:
  std::span<const std::byte> memory_;
  Executor& executor_;
  double best_ = 0;
};

}  // namespace rootdk::tools
