#pragma once

// Products of bf16 weights with x rounded to bf16, by vdpbf16ps: NarrowBlock in linear_table.h says what they promise.
// Included once per target: internal linkage.

#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

constexpr int kPairWidth = 2 * kWidth;  // columns of a vector

inline __m512bh load_pairs(const uint16_t* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
inline __m512bh load_first_pairs(const uint16_t* p, int n) {
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, p));
}

// Where there is one row alone, the weights of the next kOuts outputs are asked for meanwhile, as in direct_tile().
template <int kRows, int kOuts>
inline void narrow_tile(const NarrowBlock& block, int row, int out) {
  Vec sums[kRows][kOuts];
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) sums[r][o] = Simd::zero();
  }
  const int64_t columns = block.columns;
  const uint16_t* x = block.x + row * block.x_stride;
  const uint16_t* w = block.w + out * columns;
  int64_t k = 0;
  for (; k + kPairWidth <= columns; k += kPairWidth) {
    __m512bh weights[kOuts];
    for (int o = 0; o < kOuts; ++o) {
      weights[o] = load_pairs(w + o * columns + k);
      if (row == 0) __builtin_prefetch(w + (kOuts + o) * columns + k, 0, 2);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512bh pairs = load_pairs(x + r * block.x_stride + k);
      for (int o = 0; o < kOuts; ++o) sums[r][o] = _mm512_dpbf16_ps(sums[r][o], pairs, weights[o]);
    }
  }
  if (const int rest = static_cast<int>(columns - k); rest > 0) {
    for (int r = 0; r < kRows; ++r) {
      const __m512bh pairs = load_first_pairs(x + r * block.x_stride + k, rest);
      for (int o = 0; o < kOuts; ++o) {
        sums[r][o] = _mm512_dpbf16_ps(sums[r][o], pairs, load_first_pairs(w + o * columns + k, rest));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) finish_row(block, row + r, out, kOuts, sums[r]);
}

template <int kRows, int kOuts>
inline void narrow_rows(const NarrowBlock& block, int row) {
  int out = 0;
  for (; out + kOuts <= block.outs; out += kOuts) narrow_tile<kRows, kOuts>(block, row, out);
  for (; out < block.outs; ++out) narrow_tile<kRows, 1>(block, row, out);
}

void narrow_block(const NarrowBlock& block) {
  int row = 0;
  for (; row + 6 <= block.rows; row += 6) narrow_rows<6, 4>(block, row);
  for (; row + 2 <= block.rows; row += 2) narrow_rows<2, 4>(block, row);
  if (row < block.rows) narrow_rows<1, 8>(block, row);
}

}  // namespace
}  // namespace rootdk::cpu
