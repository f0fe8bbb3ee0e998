#pragma once

#include <cstdint>
#include <string_view>

#include "core/kv_cache_state.h"
#include "rootdk/executor.h"

namespace rootdk::tools {

// The rate at which the threads of an executor read memory with the widest loads of a CPU implementation, nothing else
// being done with it.
class ReadMeter {
 public:
  // Memory of the kind that a cache has, and far larger than those of the processor.
  ReadMeter(std::string_view implementation, std::size_t bytes, Executor& executor);

  // Reads in one, two and four streams. The best of these, in bytes a second.
  double measure();
  // Bytes a second, the best so far; 0 where the implementation is none of the CPU's.
  double best() const { return best_; }

 private:
  float (*read_)(const float* memory, std::int64_t count, int streams) = nullptr;
  HostMemory memory_;
  std::int64_t share_;  // floats of a thread
  Executor& executor_;
  double best_ = 0;
};

}  // namespace rootdk::tools
