#pragma once

// Prefetches memory that is needed soon, a few lines at a time, between products: bursts of prefetches are slower than
// no prefetching. Included once per target: internal linkage.

#include "cpu/kernel_table.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

class Fetcher {
 public:
  // Spread over so many calls of fetch_some().
  Fetcher(const SoonNeeded& soon, int calls) : soon_(soon) {
    int64_t lines = 0;
    for (const MemoryRows& area : soon_.areas) lines += static_cast<int64_t>(area.rows) * lines_of(area);
    share_ = static_cast<int>((lines + calls - 1) / larger(1, calls));
  }

  void fetch_some() {
    for (int n = 0; n < share_ && area_ < SoonNeeded::kAreas;) {
      const MemoryRows& area = soon_.areas[area_];
      if (row_ >= area.rows) {
        ++area_;
        row_ = 0;
        continue;
      }
      const char* row = static_cast<const char*>(area.data) + row_ * area.stride;
      for (int offset = 0; offset < area.bytes; offset += kLine, ++n) __builtin_prefetch(row + offset, 0, 2);
      ++row_;
    }
  }

 private:
  static constexpr int kLine = 64;
  static int lines_of(const MemoryRows& area) { return (area.bytes + kLine - 1) / kLine; }

  const SoonNeeded& soon_;
  int share_ = 0;
  int area_ = 0, row_ = 0;
};

}  // namespace
}  // namespace rootdk::cpu
