#pragma once

// Products of bf16 weights with x rounded to bf16, by products of pairs (Pairs in simd/pairs_*.h): NarrowBlock in
// linear_table.h says what they promise. Included once per target: internal linkage.

#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

constexpr int kPairWidth = Pairs::kLanes;  // columns of a vector

// kRows rows of x against kOuts rows of weights, over some of the columns; `waiting` has the sums over earlier ones, if
// these are not the first. kFetched lines of what comes next are asked for with each vector of columns.
template <int kRows, int kOuts, int kFetched>
inline void narrow_tile(const NarrowBlock& block, const uint16_t* x, const uint16_t* w, int64_t columns, bool first,
                        Vec (*waiting)[kWidth], Ahead& all_ahead) {
  Vec sums[kRows][kOuts];
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) sums[r][o] = first ? Simd::zero() : waiting[r][o];
  }
  Ahead ahead = all_ahead;
  int64_t k = 0;
  for (; k + kPairWidth <= columns; k += kPairWidth) {
    for (int i = 0; i < kFetched; ++i) ahead.fetch();
    Pairs::Vector weights[kOuts];
    for (int o = 0; o < kOuts; ++o) weights[o] = Pairs::load(w + o * block.columns + k);
    for (int r = 0; r < kRows; ++r) {
      const Pairs::Vector pairs = Pairs::load(x + r * block.x_stride + k);
      for (int o = 0; o < kOuts; ++o) sums[r][o] = Pairs::dot(sums[r][o], pairs, weights[o]);
    }
  }
  if (const int rest = static_cast<int>(columns - k); rest > 0) {
    for (int r = 0; r < kRows; ++r) {
      const Pairs::Vector pairs = Pairs::load_first(x + r * block.x_stride + k, rest);
      for (int o = 0; o < kOuts; ++o) {
        sums[r][o] = Pairs::dot(sums[r][o], pairs, Pairs::load_first(w + o * block.columns + k, rest));
      }
    }
  }
  all_ahead = ahead;
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) waiting[r][o] = sums[r][o];
  }
}

// The columns go by in chunks that the first cache holds together: those of kRows rows of x and of one tile of weights.
constexpr int64_t kNarrowChunk = 1408;

inline int64_t narrow_chunk(int64_t columns) {
  const int64_t chunks = (columns + kNarrowChunk - 1) / kNarrowChunk;
  return chunks > 1 ? ((columns + chunks - 1) / chunks + kPairWidth - 1) / kPairWidth * kPairWidth : columns;
}

// kRows rows of x against up to kWidth outputs, kOuts at a time.
template <int kRows, int kOuts, int kFetched>
inline void narrow_rows(const NarrowBlock& block, int row, int out, int outs, Ahead& ahead) {
  Vec waiting[kRows][kWidth];
  const uint16_t* x = block.x + row * block.x_stride;
  const uint16_t* w = block.w + out * block.columns;
  const int64_t chunk = narrow_chunk(block.columns);
  int64_t k = 0;
  do {  // also without columns: sums are zero then
    const int64_t here = block.columns - k < chunk ? block.columns - k : chunk;
    const auto at = [&](int o) { return reinterpret_cast<Vec(*)[kWidth]>(&waiting[0][o]); };
    int o = 0;
    for (; o + kOuts <= outs; o += kOuts) {
      narrow_tile<kRows, kOuts, kFetched>(block, x + k, w + o * block.columns + k, here, k == 0, at(o), ahead);
    }
    for (; o < outs; ++o) {
      narrow_tile<kRows, 1, 0>(block, x + k, w + o * block.columns + k, here, k == 0, at(o), ahead);
    }
    k += chunk;
  } while (k < block.columns);
  for (int r = 0; r < kRows; ++r) finish_row(block, row + r, out, outs, waiting[r]);
}

// One row alone against kOuts outputs. The weights that are `coming` are asked for meanwhile, as in direct_tile().
template <int kOuts>
inline void narrow_row(const NarrowBlock& block, int out, const uint16_t* coming) {
  Vec sums[kOuts];
  for (int o = 0; o < kOuts; ++o) sums[o] = Simd::zero();
  const int64_t columns = block.columns;
  const uint16_t* w = block.w + out * columns;
  int64_t k = 0;
  for (; k + kPairWidth <= columns; k += kPairWidth) {
    const Pairs::Vector pairs = Pairs::load(block.x + k);
    for (int o = 0; o < kOuts; ++o) {
      if (k * 2 % kLineBytes < kPairWidth * 2) __builtin_prefetch(coming + o * columns + k, 0, 2);
      sums[o] = Pairs::dot(sums[o], pairs, Pairs::load(w + o * columns + k));
    }
  }
  if (const int rest = static_cast<int>(columns - k); rest > 0) {
    const Pairs::Vector pairs = Pairs::load_first(block.x + k, rest);
    for (int o = 0; o < kOuts; ++o) {
      sums[o] = Pairs::dot(sums[o], pairs, Pairs::load_first(w + o * columns + k, rest));
    }
  }
  finish_row(block, 0, out, kOuts, sums);
}

inline void narrow_row_block(const NarrowBlock& block) {
  constexpr int kOuts = 8;
  const uint16_t* next_w = block.next_w ? block.next_w : block.w;
  int out = 0;
  for (; out + kOuts <= block.outs; out += kOuts) {
    const int next = out + kOuts;
    narrow_row<kOuts>(block, out, next < block.outs ? block.w + next * block.columns : next_w);
  }
  for (; out < block.outs; ++out) narrow_row<1>(block, out, next_w);
}

void narrow_block(const NarrowBlock& block) {
  if (block.rows == 1) return narrow_row_block(block);
  constexpr int kMostRows = 6, kOuts = 4;
  constexpr int kVectorLines = kOuts * kPairWidth * 2 / kLineBytes;  // of the weights of a tile
  for (int out = 0; out < block.outs; out += kWidth) {
    const int outs = smaller(kWidth, block.outs - out), next = out + outs;
    const uint16_t* w = block.w + out * block.columns;
    Ahead ahead(w, 0);
    if (next < block.outs) {
      ahead = Ahead(w + outs * block.columns, smaller(kWidth, block.outs - next) * block.columns * 2);
    } else if (block.next_w) {
      ahead = Ahead(block.next_w, kWidth * block.columns * 2);
    }
    if (block.rows <= kMostRows) {
      with_row_count<kMostRows>(
          block.rows, [&]<int kRows>() { narrow_rows<kRows, kOuts, kVectorLines>(block, 0, out, outs, ahead); });
    } else {
      for_row_tiles<kMostRows>(block.rows,
                               [&]<int kRows>(int row) { narrow_rows<kRows, kOuts, 1>(block, row, out, outs, ahead); });
    }
  }
}

}  // namespace
}  // namespace rootdk::cpu
