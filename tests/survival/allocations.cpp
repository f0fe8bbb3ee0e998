#include "survival/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

// What the linker calls in place of the C library's functions (-Wl,--wrap).
extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __real_calloc(std::size_t count, std::size_t bytes);
void __real_free(void* memory);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __wrap_calloc(std::size_t count, std::size_t bytes);
void __wrap_free(void* memory);
}

namespace rootdk::test {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> left{kNever};  // allocations until the one that fails
std::atomic<bool> for_good{false}, failed{false};
std::atomic<std::int64_t> live{0};

bool fails() {
  if (left.load(std::memory_order_relaxed) == kNever) return false;
  const std::int64_t before = left.fetch_sub(1);
  if (before > 1 || (before < 1 && !for_good)) return false;
  failed = true;
  return true;
}

void* counted(void* memory) {
  if (memory) live.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return counted(std::malloc(bytes ? bytes : 1));
  return counted(__real_aligned_alloc(alignment, (bytes + alignment) / alignment * alignment));
}

void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* memory = take(bytes, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void give_back(void* memory) {
  if (memory) live.fetch_sub(1, std::memory_order_relaxed);
  __real_free(memory);
}

// Blocks of aligned_alloc and calloc that were counted: free() also gets those that the C library allocated itself.
constexpr std::size_t kWrapped = 1024;
std::atomic<void*> wrapped[kWrapped];

bool exchange_wrapped(void* from, void* to) {
  for (std::atomic<void*>& slot : wrapped) {
    void* expected = from;
    if (slot.load(std::memory_order_relaxed) == from && slot.compare_exchange_strong(expected, to)) return true;
  }
  return false;
}

void* remember(void* memory) {
  if (memory && exchange_wrapped(nullptr, memory)) counted(memory);
  return memory;
}

}  // namespace

FailingAllocation::FailingAllocation(std::int64_t n, Scarcity scarcity) {
  failed = false;
  for_good = scarcity == Scarcity::for_good;
  left = n;
}
FailingAllocation::~FailingAllocation() { left = kNever; }
bool FailingAllocation::happened() { return failed; }

std::int64_t live_allocations() { return live; }

}  // namespace rootdk::test

using rootdk::test::give_back;
using rootdk::test::take;
using rootdk::test::take_or_throw;

void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return rootdk::test::fails() ? nullptr : rootdk::test::remember(__real_aligned_alloc(alignment, bytes));
}
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  return rootdk::test::fails() ? nullptr : rootdk::test::remember(__real_calloc(count, bytes));
}
void __wrap_free(void* memory) {
  if (memory && rootdk::test::exchange_wrapped(memory, nullptr)) {
    give_back(memory);
  } else {
    __real_free(memory);
  }
}

constexpr std::size_t kPlain = alignof(std::max_align_t);

void* operator new(std::size_t bytes) { return take_or_throw(bytes, kPlain); }
void* operator new[](std::size_t bytes) { return take_or_throw(bytes, kPlain); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, kPlain); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, kPlain); }
void* operator new(std::size_t bytes, std::align_val_t to) {
  return take_or_throw(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to) {
  return take_or_throw(bytes, static_cast<std::size_t>(to));
}
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(to));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { give_back(memory); }
