#pragma once

// The dropout bits of include/rootdk/dropout.h, a vector of Philox blocks at a time. Included once per target: internal
// linkage.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

struct DropoutCounter {
  uint64_t seed;
  uint32_t query, head, batch;
};

// numbers[t] is the 16-bit random number of key first_key + t for t below a multiple of 8 kWidth that covers `keys`;
// first_key is a multiple of 8. Room for keys rounded up to 8 kWidth.
inline void dropout_numbers(const DropoutCounter& counter, int64_t first_key, int keys, uint16_t* numbers) {
  using Int = Simd::Int;
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int t = 0; t < keys; t += 8 * kWidth) {
    Int c0 = Simd::add_int(Simd::set1_int(static_cast<uint32_t>((first_key + t) / 8)), Simd::iota_int());
    Int c1 = Simd::set1_int(counter.query), c2 = Simd::set1_int(counter.head), c3 = Simd::set1_int(counter.batch);
    auto key0 = static_cast<uint32_t>(counter.seed);
    auto key1 = static_cast<uint32_t>(counter.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      Int high0, low0, high1, low1;
      Simd::multiply_wide(c0, kMultiply0, high0, low0);
      Simd::multiply_wide(c2, kMultiply1, high1, low1);
      c0 = Simd::xor_int(Simd::xor_int(high1, c1), Simd::set1_int(key0));
      c1 = low1;
      c2 = Simd::xor_int(Simd::xor_int(high0, c3), Simd::set1_int(key1));
      c3 = low0;
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    uint32_t words[4][kWidth];
    Simd::store_int(words[0], c0);
    Simd::store_int(words[1], c1);
    Simd::store_int(words[2], c2);
    Simd::store_int(words[3], c3);
    // Block b holds the keys 8 b to 8 b + 7: words in order, low half first.
    for (int b = 0; b < kWidth; ++b) {
      for (int word = 0; word < 4; ++word) {
        numbers[t + 8 * b + 2 * word] = static_cast<uint16_t>(words[word][b]);
        numbers[t + 8 * b + 2 * word + 1] = static_cast<uint16_t>(words[word][b] >> 16);
      }
    }
  }
}

// Zeroes the dropped weights of a row. The factor of the kept ones joins the normaliser of the row.
inline void drop_weights(const DropoutCounter& counter, uint32_t threshold, int64_t first_key, int columns,
                         float* weights, uint16_t* numbers) {
  dropout_numbers(counter, first_key, columns, numbers);
  for (int t = 0; t < columns; t += kWidth) {
    Simd::store(weights + t, Simd::keep_at_least(Simd::load(weights + t), numbers + t, threshold));
  }
}

}  // namespace
}  // namespace rootdk::cpu
