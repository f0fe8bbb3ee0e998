#pragma once

// Which keys and columns of an 8-bit tile a thread loads, and how they become operands of the products.

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/byte_widen.cuh"
#include "cuda/ptx/address.cuh"

namespace rootdk::cuda::hopper {

// The address of a 16-byte vector of a panel's row, under the copy engine's swizzle: the vector index is XORed with the
// row (rows of 128 bytes) or with half the row (rows of 64 bytes).
template <class C>
__device__ __forceinline__ std::uint32_t sixteen_bytes(std::uint32_t panel, int row, int sixteenth) {
  const int swizzled = C::kPanelColumns == 128 ? sixteenth ^ (row & 7) : sixteenth ^ (row / 2 & 3);
  return panel + row * C::kPanelColumns + 16 * swizzled;
}

// The first of the four columns that a thread multiplies in a step of the products with keys: thread t = lane % 4 has
// quarter t of each panel.
template <class C>
__device__ __forceinline__ int query_column(int step) {
  constexpr int kSteps = C::kPanelColumns / 16;  // of a panel
  return step / kSteps * C::kPanelColumns + static_cast<int>(threadIdx.x & 3) * 4 * kSteps + step % kSteps * 4;
}

// The thread's keys, lane / 4 + 8 i of the warp's: operand a of s^T = k q^T.
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
      for (int vector = 0; vector < C::kPanels * kSixteenths; ++vector) {
        const std::uint32_t panel = ptx::shared_address(tile) + vector / kSixteenths * C::kPanelBytes;
        const int4 bytes =
            ptx::load_shared_int4(sixteen_bytes<C>(panel, key, (lane & 3) * kSixteenths + vector % kSixteenths));
        words_[i][4 * vector] = bytes.x;
        words_[i][4 * vector + 1] = bytes.y;
        words_[i][4 * vector + 2] = bytes.z;
        words_[i][4 * vector + 3] = bytes.w;
      }
    }
  }

  // The operand of sixteen keys and the four columns from query_column() on.
  __device__ __forceinline__ uint4 operand(int slice, int step) const {
    const uint2 upper = widen<C::kStored>(words_[2 * slice][step]),
                lower = widen<C::kStored>(words_[2 * slice + 1][step]);
    return make_uint4(upper.x, lower.x, upper.y, lower.y);
  }

 private:
  std::uint32_t words_[C::kWarpKeys / 8][C::kScoreSteps];
};

// The thread's values: operand a of o^T += v^T weights^T. With t = lane % 4 and g = lane / 4 it has the keys 2 t, 2 t +
// 1, 2 t + 8 and 2 t + 9 of every sixteen, and eighth g of each panel's columns. Two adjacent columns of every thread
// make a block of sixteen.
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

  // Sets the values of keys that are not seen to 0. `seen` takes an index among the warp's keys.
  template <class Seen>
  __device__ __forceinline__ void keep(Seen seen) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const std::uint32_t mask = seen(key_of(i)) ? 0xffffffffu : 0u;
#pragma unroll
      for (int word = 0; word < kWords; ++word) words_[i][word] &= mask;
    }
  }

  // The operand of sixteen keys and a block of columns. The bytes of two keys are paired first.
  __device__ __forceinline__ uint4 operand(int slice, int block) const {
    const int word = block / 2;
    const std::uint32_t selector = block % 2 ? 0x7362 : 0x5140;
    const uint2 low = widen<C::kStored>(__byte_perm(words_[4 * slice][word], words_[4 * slice + 1][word], selector));
    const uint2 high =
        widen<C::kStored>(__byte_perm(words_[4 * slice + 2][word], words_[4 * slice + 3][word], selector));
    return make_uint4(low.x, low.y, high.x, high.y);
  }

  // Which accumulator holds a column of the output: the block, the g of its threads, and which of their two columns.
  struct OutputColumn {
    int block, g, which;
  };
  static __device__ __forceinline__ OutputColumn output_column(int column) {
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
