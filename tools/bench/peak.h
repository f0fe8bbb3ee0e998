#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "rootdk/executor.h"

namespace rootdk::tools {

// The multiply-add peak of the instructions that a CPU implementation uses, all threads at once.
class PeakMeter {
 public:
  PeakMeter(std::string_view implementation, Executor& executor);

  bool exists() const { return peak_ != nullptr; }
  void measure();  // about 3 ms
  double best_flops_per_second() const { return best_; }

 private:
  std::int64_t (*peak_)(std::int64_t rounds, float* sum) = nullptr;
  Executor& executor_;
  std::int64_t rounds_ = 1000;
  double best_ = 0;
};

// Seconds that body takes. On one thread the time of the processor, which other programs on the machine do not lengthen
// while this one waits; on several threads the time of the clock.
double seconds_of(int threads, const std::function<void()>& body);

// The memory that the process takes while body runs, above what it had before. 0 where the system does not tell.
std::size_t peak_bytes_of(const std::function<void()>& body);

}  // namespace rootdk::tools
