#pragma once

// The dots of linear_integers.h on 64-bit Arm with dot products. Included once per target: internal linkage.

#include "cpu/kernel/linear_neon.h"

namespace rootdk::cpu {
namespace {

struct DotProducts {
  static constexpr int kTileRows = 6;
  static int32x4_t add(int32x4_t sums, int8x16_t w, int8x16_t x) { return vdotq_s32(sums, w, x); }
};

}  // namespace
}  // namespace rootdk::cpu
