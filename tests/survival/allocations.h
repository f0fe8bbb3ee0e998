#pragma once

// Memory that runs out on demand. A program that links allocations.cpp takes every operator new, and the aligned_alloc
// and calloc of the library, from here.

#include <cstdint>

namespace rootdk::test {

enum class Scarcity {
  once,     // one allocation fails, later ones succeed
  for_good  // every later one fails, too
};

// While it lives, the n-th allocation of the process fails, on whichever thread it comes. The first is 1.
class FailingAllocation {
 public:
  FailingAllocation(std::int64_t n, Scarcity scarcity);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Whether it came to that.
  static bool happened();
};

// Blocks that have been allocated and not freed.
std::int64_t live_allocations();

}  // namespace rootdk::test
