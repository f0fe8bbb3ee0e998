#pragma once

// RoPE on the device, in double like the specification: rotates one element at a time.

#include <algorithm>
#include <cstdint>

#include "core/kv_call.h"

namespace rootdk::cuda {

inline constexpr int kMaxRotatedPairs = 128;

struct DeviceRotation {
  double frequency[kMaxRotatedPairs] = {};
  double magnitude = 1;
  int pairs = 0;  // 0: no rotation
  bool half_split = true;
  std::int64_t offset = 0;

  static DeviceRotation make(const Rotation& rotation) {
    DeviceRotation result;
    std::copy(rotation.frequency.begin(), rotation.frequency.end(), result.frequency);
    result.magnitude = rotation.magnitude;
    result.pairs = static_cast<int>(rotation.frequency.size());
    result.half_split = rotation.layout == RopeLayout::half_split;
    result.offset = rotation.offset;
    return result;
  }

#ifdef __CUDACC__
  // Element d of the rotated vector; element(d) reads the vector itself.
  template <class Element>
  __device__ double rotated(int d, std::int64_t position, Element element) const {
    if (d >= 2 * pairs) return element(d);
    const int pair = half_split ? d % pairs : d / 2;
    const bool second = half_split ? d >= pairs : d % 2 == 1;
    const int partner = half_split ? (second ? d - pairs : d + pairs) : d ^ 1;
    double sine, cosine;
    sincos(static_cast<double>(position + offset) * frequency[pair], &sine, &cosine);
    const double along = magnitude * cosine * element(d), across = magnitude * sine * element(partner);
    return second ? along + across : along - across;
  }
#endif
};

}  // namespace rootdk::cuda
