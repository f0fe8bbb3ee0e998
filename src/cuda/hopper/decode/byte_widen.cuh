#pragma once

// 8-bit numbers to f16, exactly.

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

// Four bytes to two pairs of f16; x has the lower two bytes.
template <ByteType Stored>
__device__ __forceinline__ uint2 widen(std::uint32_t bytes) {
  if constexpr (Stored == ByteType::int8) {
    // The f16 number 1024 + (byte + 128) has the byte in its last bits; subtracting 1152 leaves the byte's value.
    constexpr std::uint32_t kOne = 0x3C003C00, kMinus1152 = 0xE480E480, kExponent = 0x64646464;
    bytes ^= 0x80808080;
    return make_uint2(ptx::fma_pair<__half>(__byte_perm(bytes, kExponent, 0x4140), kOne, kMinus1152),
                      ptx::fma_pair<__half>(__byte_perm(bytes, kExponent, 0x4342), kOne, kMinus1152));
  } else {
    return make_uint2(ptx::unpack_e4m3(static_cast<std::uint16_t>(bytes)),
                      ptx::unpack_e4m3(static_cast<std::uint16_t>(bytes >> 16)));
  }
}

}  // namespace rootdk::cuda::hopper
