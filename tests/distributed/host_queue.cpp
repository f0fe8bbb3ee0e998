#include "distributed/host_queue.h"

#include <cstdlib>
#include <cstring>

#include "core/strided.h"

namespace rootdk::test {
namespace {

template <class Body>
void each_element(const TensorView& to, const ConstTensorView& from, Body body) {
  for (int d = 0; d < 4; ++d) require(to.size(d) == from.size(d), describe(to), " gets ", describe(from));
  with_floating_type(to.dtype, [&](auto to_element) {
    with_floating_type(from.dtype, [&](auto from_element) {
      const auto t = write<decltype(to_element), 4>(to);
      const auto f = read<decltype(from_element), 4>(from);
      for (std::int64_t b = 0; b < to.size(0); ++b) {
        for (std::int64_t h = 0; h < to.size(1); ++h) {
          for (std::int64_t i = 0; i < to.size(2); ++i) {
            for (std::int64_t d = 0; d < to.size(3); ++d) body(t(b, h, i, d), f(b, h, i, d));
          }
        }
      }
    });
  });
}

}  // namespace

// Outputs begin as NaN, so that a row that is never written shows.
void* HostQueue::allocate(std::size_t bytes) {
  void* const memory = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
  std::memset(memory, 0xff, bytes);
  return memory;
}

void HostQueue::release(void* memory) noexcept { std::free(memory); }

void HostQueue::copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

void HostQueue::fill_zero(void* memory, std::size_t bytes) { std::memset(memory, 0, bytes); }

void HostQueue::copy_rows(const TensorView& to, const ConstTensorView& from) {
  each_element(to, from, [](auto& t, const auto& f) { t = from_double<std::decay_t<decltype(t)>>(to_double(f)); });
}

void HostQueue::add_rows(const TensorView& to, const ConstTensorView& from) {
  each_element(to, from,
               [](auto& t, const auto& f) { t = from_double<std::decay_t<decltype(t)>>(to_double(t) + to_double(f)); });
}

}  // namespace rootdk::test
