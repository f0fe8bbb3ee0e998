#pragma once

// Reading memory and nothing else, with the widest loads of a target: what the benchmark of decoding compares with.
// Included once per target: internal linkage.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// Reads kStreams equal parts of the memory side by side. The largest number found keeps the loads alive.
template <int kStreams>
inline float read_streams(const float* memory, int64_t count) {
  constexpr int kStreamFloats = 256 / static_cast<int>(sizeof(float));  // of one stream, before the next has its turn
  const int64_t part = count / kStreams / kStreamFloats * kStreamFloats;
  Vec top[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  for (int64_t i = 0; i < part; i += kStreamFloats) {
    for (int s = 0; s < kStreams; ++s) {
      const float* from = memory + s * part + i;
      for (int j = 0; j < kStreamFloats; j += 4 * kWidth) {
        for (int chain = 0; chain < 4; ++chain) {
          top[chain] = Simd::max(top[chain], Simd::load(from + j + chain * kWidth));
        }
      }
    }
  }
  return Simd::reduce_max(Simd::max(Simd::max(top[0], top[1]), Simd::max(top[2], top[3])));
}

inline float read_memory(const float* memory, int64_t count, int streams) {
  switch (streams) {
    case 4: return read_streams<4>(memory, count);
    case 2: return read_streams<2>(memory, count);
    default: return read_streams<1>(memory, count);
  }
}

}  // namespace
}  // namespace rootdk::cpu
