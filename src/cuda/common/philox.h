#pragma once

// The dropout bits of include/rootdk/dropout.h on the device. Two neighbouring keys (2 p, 2 p + 1) share one 32-bit
// word of a Philox block, the even key in its low half: kernels that hold pairs of keys need one word for both.

#include <cstdint>

#include "rootdk/dropout.h"

namespace rootdk::cuda {

struct DropoutBits {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;  // of 65536; 0: no dropout
  float keep_scale = 1.0f;

  static DropoutBits make(const DropoutRule& rule) {
    return {.seed = rule.seed, .threshold = rule.threshold, .keep_scale = rule.keep_scale};
  }

  __device__ bool active() const { return threshold != 0; }

  // The four words of the block that covers the keys [8 key_block, 8 key_block + 8) of row i.
  __device__ uint4 block(std::uint32_t batch, std::uint32_t head, std::uint32_t i, std::uint32_t key_block) const {
    constexpr std::uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
    constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
    std::uint32_t c0 = key_block, c1 = i, c2 = head, c3 = batch;
    std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const std::uint32_t high0 = __umulhi(kMultiply0, c0), low0 = kMultiply0 * c0;
      const std::uint32_t high1 = __umulhi(kMultiply1, c2), low1 = kMultiply1 * c2;
      c0 = high1 ^ c1 ^ key0;
      c1 = low1;
      c2 = high0 ^ c3 ^ key1;
      c3 = low0;
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    return make_uint4(c0, c1, c2, c3);
  }

  // The word that holds key j and its neighbour j ^ 1.
  __device__ std::uint32_t word(std::uint32_t batch, std::uint32_t head, std::uint32_t i, std::uint32_t j) const {
    const uint4 words = block(batch, head, i, j / 8);
    const std::uint32_t pair = (j % 8) / 2;
    return pair == 0 ? words.x : pair == 1 ? words.y : pair == 2 ? words.z : words.w;
  }

  // Whether the weight of key j is kept, given its word. Kept weights are multiplied by keep_scale.
  __device__ bool keeps(std::uint32_t word, std::uint32_t j) const {
    return ((word >> (16 * (j % 2))) & 0xffffu) >= threshold;
  }
};

}  // namespace rootdk::cuda
