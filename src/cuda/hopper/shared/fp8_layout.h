#pragma once

// What the preparation of e4m3 attention and its kernels agree on.

#include <cstdint>

namespace rootdk::cuda::hopper {

inline constexpr float kFp8Largest = 448.f;   // of e4m3
inline constexpr float kFp8WeightBits = 8.f;  // weights are multiplied by 2^8 before they are rounded

// P V adds to its accumulators with few digits: after so many key tiles they are added to sums in f32.
inline constexpr int kFp8TilesOfSum = 16;

// Where v has a key inside its block: P V takes the weights in the order in which a thread's accumulators hold them.
constexpr int fp8_key_position(int key) {
  const int half = key / 8 % 2, pair = key / 2 % 4;
  return key / 16 * 16 + 4 * pair + 2 * half + key % 2;
}

}  // namespace rootdk::cuda::hopper
