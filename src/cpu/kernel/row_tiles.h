#pragma once

// How products with stored weights go over rows, and how weights come from memory meanwhile. Included once per target:
// internal linkage.

#include <stdint.h>

namespace rootdk::cpu {
namespace {

template <int kMost, class Body>
inline void with_row_count(int rows, Body body) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_row_count<kMost - 1>(rows, body);
  }
  body.template operator()<kMost>();
}

// Calls body.operator()<count>(row) for tiles of at most kMost rows, which are as even as can be: a tile of few rows
// keeps the processor waiting for its own sums.
template <int kMost, class Body>
inline void for_row_tiles(int rows, Body body) {
  const int tiles = (rows + kMost - 1) / kMost;
  for (int tile = 0, row = 0; tile < tiles; ++tile) {
    const int count = rows / tiles + (tile < rows % tiles ? 1 : 0);
    with_row_count<kMost>(count, [&]<int kRows>() { body.template operator()<kRows>(row); });
    row += count;
  }
}

constexpr int64_t kLineBytes = 64;  // of a cache

// Memory that will be needed soon. It comes into the second cache line by line, between multiply-adds.
class Ahead {
 public:
  Ahead(const void* begin, int64_t bytes) : next_(static_cast<const char*>(begin)), end_(next_ + bytes) {}
  void fetch() {
    if (next_ >= end_) return;
    __builtin_prefetch(next_, 0, 2);
    next_ += kLineBytes;
  }

 private:
  const char *next_, *end_;
};

}  // namespace
}  // namespace rootdk::cpu
