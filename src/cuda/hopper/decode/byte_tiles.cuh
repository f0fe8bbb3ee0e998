#pragma once

// What a thread has of a tile of bytes: which keys and columns, and how they become operands of the products.

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/byte_widen.cuh"
#include "cuda/ptx/address.cuh"

namespace rootdk::cuda::hopper {

// Sixteen bytes of a row of a panel, under the copy engine's swizzle: rows of 128 bytes permute their sixteenths by the
// row, rows of 64 bytes by half of it.
template <class C>
__device__ __forceinline__ std::uint32_t sixteen_bytes(std::uint32_t panel, int row, int sixteenth) {
  const int swizzled = C::kPanelColumns == 128 ? sixteenth ^ (row & 7) : sixteenth ^ (row / 2 & 3);
  return panel + row * C::kPanelColumns + 16 * swizzled;
}

// The columns of a thread in the products with keys: of each panel its quarter, t = lane % 4, four for each step.
template <class C>
__device__ __forceinline__ int query_column(int step) {
  constexpr int kSteps = C::kPanelColumns / 16;  // of a panel
  return step / kSteps * C::kPanelColumns + static_cast<int>(threadIdx.x & 3) * 4 * kSteps + step % kSteps * 4;
}

// Keys lane / 4 + 8 i of the warp's: operand a of s^T = k q^T.
template <class C>
class KeyBytes {
 public:
  __device__ __forceinline__ KeyBytes(const std::uint8_t* tile, int first_key) {
    constexpr int kSixteenths = C::kPanelColumns / 64;  // of a thread and a panel
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < C::kWarpKeys / 8; ++i) {
      const int key = first_key + 8 * i + lane / 4;
#pragma unroll
      for (int piece = 0; piece < C::kPanels * kSixteenths; ++piece) {
        const std::uint32_t panel = ptx::shared_address(tile) + piece / kSixteenths * C::kPanelBytes;
        const int4 bytes =
            ptx::load_shared_int4(sixteen_bytes<C>(panel, key, (lane & 3) * kSixteenths + piece % kSixteenths));
        words_[i][4 * piece] = bytes.x;
        words_[i][4 * piece + 1] = bytes.y;
        words_[i][4 * piece + 2] = bytes.z;
        words_[i][4 * piece + 3] = bytes.w;
      }
    }
  }

  // For sixteen keys and four columns, which are query_column().
  __device__ __forceinline__ uint4 operand(int slice, int step) const {
    const uint2 upper = widen<C::kStored>(words_[2 * slice][step]),
                lower = widen<C::kStored>(words_[2 * slice + 1][step]);
    return make_uint4(upper.x, lower.x, upper.y, lower.y);
  }

 private:
  std::uint32_t words_[C::kWarpKeys / 8][C::kScoreSteps];
};

// Keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of every sixteen, t = lane % 4; of each panel an eighth of the columns, that
// of g = lane / 4: operand a of o^T += v^T weights^T. Two neighbouring columns of every thread make a block of sixteen.
template <class C>
class ValueBytes {
 public:
  __device__ __forceinline__ ValueBytes(const std::uint8_t* tile, int first_key) {
    const int g = static_cast<int>(threadIdx.x) / 4 & 7;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = first_key + key_of(i);
#pragma unroll
      for (int p = 0; p < C::kPanels; ++p) {
        const std::uint32_t panel = ptx::shared_address(tile) + p * C::kPanelBytes;
        if constexpr (kColumns == 16) {
          const int4 bytes = ptx::load_shared_int4(sixteen_bytes<C>(panel, key, g));
          words_[i][4 * p] = bytes.x;
          words_[i][4 * p + 1] = bytes.y;
          words_[i][4 * p + 2] = bytes.z;
          words_[i][4 * p + 3] = bytes.w;
        } else {
          const float2 bytes = ptx::load_shared_float2(sixteen_bytes<C>(panel, key, g / 2) + g % 2 * 8);
          words_[i][0] = __float_as_uint(bytes.x);
          words_[i][1] = __float_as_uint(bytes.y);
        }
      }
    }
  }

  // Values of other keys become 0. `seen` is asked about keys of the warp.
  template <class Seen>
  __device__ __forceinline__ void keep(Seen seen) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const std::uint32_t mask = seen(key_of(i)) ? 0xffffffffu : 0u;
#pragma unroll
      for (int word = 0; word < kWords; ++word) words_[i][word] &= mask;
    }
  }

  // For sixteen keys and a block of columns: bytes of two keys are paired first.
  __device__ __forceinline__ uint4 operand(int slice, int block) const {
    const int word = block / 2;
    const std::uint32_t selector = block % 2 ? 0x7362 : 0x5140;
    const uint2 low = widen<C::kStored>(__byte_perm(words_[4 * slice][word], words_[4 * slice + 1][word], selector));
    const uint2 high =
        widen<C::kStored>(__byte_perm(words_[4 * slice + 2][word], words_[4 * slice + 3][word], selector));
    return make_uint4(low.x, low.y, high.x, high.y);
  }

  // Where a column of the output is: in which block, in the accumulators of which g, as which of its two.
  struct Place {
    int block, g, which;
  };
  static __device__ __forceinline__ Place place_of(int column) {
    const int panel = column / C::kPanelColumns, in_panel = column % C::kPanelColumns;
    return {(panel * kColumns + in_panel % kColumns) / 2, in_panel / kColumns, in_panel % 2};
  }

 private:
  static constexpr int kColumns = C::kPanelColumns / 8;     // of a thread and a panel
  static constexpr int kWords = C::kPanels * kColumns / 4;  // of a thread and a key
  static constexpr int kKeys = C::kWarpKeys / 4;            // of a thread
  static __device__ __forceinline__ int key_of(int i) {
    return i / 4 * 16 + i / 2 % 2 * 8 + i % 2 + 2 * static_cast<int>(threadIdx.x & 3);
  }

  std::uint32_t words_[kKeys][kWords];
};

}  // namespace rootdk::cuda::hopper
