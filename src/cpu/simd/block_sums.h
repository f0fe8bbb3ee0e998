#pragma once

// The sums over the lanes of a 4 x 4 block of vectors, for targets without a better way.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// sums[r * stride + i] = sum over the lanes of block[r][i].
inline void store_block_sums(const Vec (&block)[4][4], float* sums, int stride) {
  for (int r = 0; r < 4; ++r) {
    for (int i = 0; i < 4; ++i) sums[r * stride + i] = Simd::reduce_add(block[r][i]);
  }
}

}  // namespace
}  // namespace rootdk::cpu
