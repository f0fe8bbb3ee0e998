#pragma once

// Products with stored weights that are floats: LinearBlock in linear_table.h says what they promise. Included once per
// target: internal linkage.

#include "cpu/kernel/linear_integers.h"
#include "cpu/kernel/linear_weights.h"
#include "cpu/kernel/row_tiles.h"

namespace rootdk::cpu {
namespace {

template <class Target>
concept SumsRowsTogether = requires(const float (&rows)[kWidth][kWidth]) {
  Target::reduce_rows(rows, 1, Target::add);
};

// Outputs [out, out + count) of one row from their accumulators: the sum over the lanes of each, by the same tree.
template <class Target, class Block>
inline void finish_vector(const Block& block, int row, int out, int count, const Vec* accumulators) {
  float* y = block.y + row * block.y_stride + out;
  if constexpr (SumsRowsTogether<Target>) {
    Vec sums = Target::reduce_rows(*reinterpret_cast<const float(*)[kWidth][kWidth]>(accumulators), count,
                                   [](Vec a, Vec b) { return Target::add(a, b); });
    if (block.bias) sums = Target::add(sums, Target::load_first(block.bias + out, count));
    if (count == kWidth) return Target::store(y, sums);
    Target::store_first(y, sums, count);
  } else {
    for (int i = 0; i < count; ++i) {
      y[i] = Target::reduce_add(accumulators[i]);
      if (block.bias) y[i] += block.bias[out + i];
    }
  }
}

template <class Block>
inline void finish_row(const Block& block, int row, int out, int count, const Vec* accumulators) {
  for (int done = 0; done < count; done += kWidth) {
    finish_vector<Simd>(block, row, out + done, smaller(kWidth, count - done), accumulators + done);
  }
}

// kRows rows of x against kOuts rows of weights, which are widened on the way. `coming` is where the weights lie that
// this thread needs afterwards: a row of weights is often one page long, too short for the processor to see it coming.
template <class Weights, int kRows, int kOuts>
inline void direct_tile(const LinearBlock& block, int out, const char* coming) {
  constexpr int64_t kVectorBytes = kWidth * sizeof(typename Weights::Type);
  Weights weights[kOuts];
  Vec sums[kRows][kOuts];
  for (int o = 0; o < kOuts; ++o) {
    weights[o] = Weights(block, out + o);
    for (int r = 0; r < kRows; ++r) sums[r][o] = Simd::zero();
  }
  const int64_t columns = block.columns;
  int64_t k = 0;
  for (; k + kWidth <= columns; k += kWidth, coming += kVectorBytes) {
    if (k * static_cast<int64_t>(sizeof(typename Weights::Type)) % kLineBytes < kVectorBytes) {
      for (int o = 0; o < kOuts; ++o) __builtin_prefetch(coming + o * block.row_bytes, 0, 2);
    }
    Vec x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = Simd::load(block.x + r * columns + k);
    for (int o = 0; o < kOuts; ++o) {
      const Vec w = weights[o].load(k);
      for (int r = 0; r < kRows; ++r) sums[r][o] = Simd::fma(x[r], w, sums[r][o]);
    }
  }
  if (const int rest = static_cast<int>(columns - k); rest > 0) {
    for (int o = 0; o < kOuts; ++o) {
      const Vec w = weights[o].load_first(k, rest);
      for (int r = 0; r < kRows; ++r) {
        sums[r][o] = Simd::fma(Simd::load_first(block.x + r * columns + k, rest), w, sums[r][o]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) finish_row(block, r, out, kOuts, sums[r]);
}

template <class Weights, int kRows, int kOuts>
inline void direct_rows(const LinearBlock& block) {
  const auto* w = static_cast<const char*>(block.w);
  const auto* next_w = static_cast<const char*>(block.next_w ? block.next_w : block.w);
  int out = 0;
  for (; out + kOuts <= block.outs; out += kOuts) {
    const int next = out + kOuts;
    direct_tile<Weights, kRows, kOuts>(block, out, next < block.outs ? w + next * block.row_bytes : next_w);
  }
  for (; out < block.outs; ++out) direct_tile<Weights, kRows, 1>(block, out, next_w);
}

inline void direct_block(const LinearBlock& block) {
  with_weights(block.kind, [&]<class Weights>() {
    switch (block.rows) {
      case 1: return direct_rows<Weights, 1, 8>(block);
      case 2: return direct_rows<Weights, 2, 4>(block);
      case 3: return direct_rows<Weights, 3, 4>(block);
      default: return direct_rows<Weights, 4, 4>(block);
    }
  });
}

// A panel holds f32 weights in tiles of kTileOuts outputs: [tile, vector of columns, output, kWidth], one after another
// in memory, since rows that lie a power of two apart fall into the same sets of the first cache and drive each other
// out. A tile goes over a chunk of the columns, so that the x of a tile stays in the first cache, and its accumulators
// wait in memory for the next chunk.
constexpr int kTileRows = Simd::kPanelVectors == 4 ? 6 : 3;
constexpr int kTileOuts = 4;
constexpr int kPanelOuts = 16;
constexpr int64_t kChunkColumns = 2048;

inline int64_t padded_columns(int64_t columns) { return (columns + kWidth - 1) / kWidth * kWidth; }

template <int kRows>
inline void panel_tile(const float* x, int64_t x_stride, const float* w, int64_t columns, bool first,
                       Vec (*waiting)[kPanelOuts], Ahead& ahead) {
  Vec sums[kRows][kTileOuts];
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kTileOuts; ++o) sums[r][o] = first ? Simd::zero() : waiting[r][o];
  }
  int64_t k = 0;
  for (; k + kWidth <= columns; k += kWidth, w += kTileOuts * kWidth) {
    ahead.fetch();
    Vec weights[kTileOuts];
    for (int o = 0; o < kTileOuts; ++o) weights[o] = Simd::load(w + o * kWidth);
    for (int r = 0; r < kRows; ++r) {
      const Vec row = Simd::load(x + r * x_stride + k);
      for (int o = 0; o < kTileOuts; ++o) sums[r][o] = Simd::fma(row, weights[o], sums[r][o]);
    }
  }
  if (const int rest = static_cast<int>(columns - k); rest > 0) {
    for (int r = 0; r < kRows; ++r) {
      const Vec row = Simd::load_first(x + r * x_stride + k, rest);
      for (int o = 0; o < kTileOuts; ++o) sums[r][o] = Simd::fma(row, Simd::load(w + o * kWidth), sums[r][o]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kTileOuts; ++o) waiting[r][o] = sums[r][o];
  }
}

template <int kRows>
inline void panel_rows(const LinearBlock& block, const float* panel, int row, Ahead& ahead) {
  Vec waiting[kRows][kPanelOuts];
  const int64_t columns = block.columns, stride = padded_columns(columns);
  const float* x = block.x + row * columns;
  int64_t k = 0;
  do {  // also without columns: sums are zero then
    const int64_t here = columns - k < kChunkColumns ? columns - k : kChunkColumns;
    for (int o = 0; o < block.outs; o += kTileOuts) {
      panel_tile<kRows>(x + k, columns, panel + o * stride + k * kTileOuts, here, k == 0,
                        reinterpret_cast<Vec(*)[kPanelOuts]>(&waiting[0][o]), ahead);
    }
    k += kChunkColumns;
  } while (k < columns);
  for (int r = 0; r < kRows; ++r) finish_row(block, row + r, 0, block.outs, waiting[r]);
}

inline void widen_panel(const LinearBlock& block, float* panel) {
  const int64_t columns = block.columns, stride = padded_columns(columns);
  with_weights(block.kind, [&]<class Weights>() {
    for (int o = 0; o < block.outs; ++o) {
      const Weights weights(block, o);
      float* row = panel + o / kTileOuts * kTileOuts * stride + o % kTileOuts * kWidth;
      int64_t k = 0;
      for (; k + kWidth <= columns; k += kWidth, row += kTileOuts * kWidth) {
        __builtin_prefetch(static_cast<const char*>(weights.address(k)) + block.row_bytes, 0, 2);
        Simd::store(row, weights.load(k));
      }
      if (k < columns) Simd::store(row, weights.load_first(k, static_cast<int>(columns - k)));
    }
  });
  for (int o = block.outs; o < round_up(block.outs, kTileOuts); ++o) {
    float* row = panel + o / kTileOuts * kTileOuts * stride + o % kTileOuts * kWidth;
    for (int64_t k = 0; k < stride; k += kWidth, row += kTileOuts * kWidth) Simd::store(row, Simd::zero());
  }
}

inline void panel_block(const LinearBlock& block) {
  auto* panel = static_cast<float*>(block.scratch);
  const char* w = static_cast<const char*>(block.w);
  for (int out = 0; out < block.outs; out += kPanelOuts) {
    LinearBlock part = block;
    part.w = w + out * block.row_bytes;
    part.outs = smaller(kPanelOuts, block.outs - out);
    part.y += out;
    if (part.bias) part.bias += out;
    widen_panel(part, panel);
    const int next = out + part.outs;
    Ahead ahead(part.w, 0);
    if (next < block.outs) {
      ahead = Ahead(w + next * block.row_bytes, smaller(kPanelOuts, block.outs - next) * block.row_bytes);
    } else if (block.next_w) {
      ahead = Ahead(block.next_w, kPanelOuts * block.row_bytes);
    }
    for_row_tiles<kTileRows>(block.rows, [&]<int kRows>(int row) { panel_rows<kRows>(part, panel, row, ahead); });
  }
}

inline size_t panel_bytes(int64_t columns) {
  return static_cast<size_t>(padded_columns(columns)) * kPanelOuts * sizeof(float);
}

inline void round_bf16(const float* x, int64_t count, uint16_t* to) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) Simd::store_bf16(to + i, Simd::load(x + i));
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    Simd::store_bf16_first(to + i, Simd::load_first(x + i, rest), rest);
  }
}

template <class Dots>
constexpr LinearTable linear_functions() {
  LinearTable table{.direct = direct_block, .panel = panel_block, .panel_bytes = panel_bytes, .round_bf16 = round_bf16};
  add_integer_functions<Dots>(table);
  return table;
}

}  // namespace
}  // namespace rootdk::cpu
