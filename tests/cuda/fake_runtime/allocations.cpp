// Every operator new of a program that links this is counted. Apart from the tests: a compiler that sees both sides
// warns of memory that malloc took and delete gave back.

#include <cstdlib>
#include <new>

#include "fake_runtime/runtime.h"

namespace rootdk::test {

int& allocations_of_thread() {
  thread_local int count = 0;
  return count;
}

}  // namespace rootdk::test

void* operator new(std::size_t bytes) {
  ++rootdk::test::allocations_of_thread();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
