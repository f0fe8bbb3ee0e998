#pragma once

// The random bits of attention dropout: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), a counter-based generator.
// Whether a weight is dropped is a pure function of (seed, batch, head, i, j): every backend drops the same weights,
// and backward needs no stored mask. docs/dropout.md has the definition and test values.

#include <array>
#include <cstdint>

namespace rootdk {

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords philox4x32_10(PhiloxWords counter, std::uint64_t seed) {
  constexpr std::uint64_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiply0 * counter[0];
    const std::uint64_t product1 = kMultiply1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// The dropout rule of one call. Each weight gets a 16-bit number; it is dropped when that is below `threshold`, and
// kept weights are multiplied by `keep_scale`, the exact inverse of the share that is kept.
struct DropoutRule {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;  // of 65536; 0: no dropout
  float keep_scale = 1.0f;

  static constexpr DropoutRule make(double probability, std::uint64_t seed) {
    auto threshold = static_cast<std::uint32_t>(probability * 65536.0 + 0.5);
    if (threshold > 65535u) threshold = 65535u;
    return {seed, threshold, static_cast<float>(65536.0 / (65536.0 - threshold))};
  }

  // Eight keys share one Philox block: number j % 8 of the block with the counter (j / 8, i, head, batch), low half
  // first. For packed sequences batch is the number of the sequence, and i and j count inside it.
  constexpr bool keeps(std::uint32_t batch, std::uint32_t head, std::uint32_t i, std::uint32_t j) const {
    const PhiloxWords words = philox4x32_10({j / 8, i, head, batch}, seed);
    const std::uint32_t number = (words[(j % 8) / 2] >> (16 * (j % 2))) & 0xffffu;
    return number >= threshold;
  }
};

}  // namespace rootdk
