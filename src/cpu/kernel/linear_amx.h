#pragma once

// Products with stored weights on AMX tiles. Needs LinearTiles (simd/amx_linear_tiles.h). Included once per target:
// internal linkage.
//
// bf16: rows of weights are left tiles as they lie in the checkpoint, 16 outputs and 32 columns, and x is packed into
// right tiles once a call. A tile product adds 32 columns to 16 outputs of 16 rows, and outputs are transposed at the
// end. Every number of rows takes this way, one row too: the sum of an element has one order, that of the processor.
//
// Integers: groups of 16 rows of weights lie as right tiles do, a block of 32 columns in 8 rows of a tile; x is the
// left tile. The sum of a block is an exact integer, so that scales follow in the order of integer_tile(), and the bits
// are those of the kernels for few rows.

#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

constexpr int kTile = kXTileRows;            // outputs, and rows of x
constexpr int kTileColumns = kXTileColumns;  // of a left tile of bf16
static_assert(kWidth == kTile);

// Up to 16 rows of x, rounded to bf16: [step, 16 pairs of columns, tile_rows, 2]. What is missing is zero.
void pack_x(const float* x, int rows, int tile_rows, int64_t columns, uint16_t* to) {
  if (tile_rows == 1) {  // its pairs follow one another already
    round_bf16(x, columns, to);
    for (int64_t k = columns; k % kTileColumns != 0; ++k) to[k] = 0;
    return;
  }
  alignas(64) uint16_t rounded[kTile][kTileColumns] = {};
  for (int64_t k = 0; k < columns; k += kTileColumns) {
    const int here = columns - k < kTileColumns ? static_cast<int>(columns - k) : kTileColumns;
    if (here < kTileColumns) __builtin_memset(rounded, 0, sizeof rounded);
    for (int r = 0; r < rows; ++r) round_bf16(x + r * columns + k, here, rounded[r]);
    Vec pairs[kTile];
    for (int r = 0; r < kTile; ++r) pairs[r] = Simd::load(reinterpret_cast<const float*>(rounded[r]));
    Simd::transpose(pairs);
    for (int p = 0; p < kTile; ++p, to += 2 * tile_rows) {
      auto* row = reinterpret_cast<float*>(to);
      tile_rows == kTile ? Simd::store(row, pairs[p]) : Simd::store_first(row, pairs[p], tile_rows);
    }
  }
}

// Weights and x of one product of tiles: up to 32 outputs by up to 32 rows.
struct TileOperands {
  const uint16_t* w;  // of the first output
  int64_t columns;
  const uint16_t* x;
  int64_t x_stride;  // from 16 rows to the next
  int64_t x_bytes;   // of a pair of columns
};

template <bool kTwoOuts, bool kTwoRows>
inline void multiply_step(const void* w_0, const void* w_1, int64_t w_bytes, const void* x_0, const void* x_1,
                          int64_t x_bytes) {
  LinearTiles::load_right_0(x_0, x_bytes);
  LinearTiles::load_left_0(w_0, w_bytes);
  LinearTiles::pairs_00();
  if constexpr (kTwoOuts) {
    LinearTiles::load_left_1(w_1, w_bytes);
    LinearTiles::pairs_10();
  }
  if constexpr (kTwoRows) {
    LinearTiles::load_right_1(x_1, x_bytes);
    LinearTiles::pairs_01();
    if constexpr (kTwoOuts) LinearTiles::pairs_11();
  }
}

// `lines` lines of what comes next are asked for with each step.
template <bool kTwoOuts, bool kTwoRows>
inline void multiply_tiles(const TileOperands& a, int outs, int lines, Ahead& all_ahead) {
  LinearTiles::zero_00();
  if constexpr (kTwoOuts) LinearTiles::zero_10();
  if constexpr (kTwoRows) LinearTiles::zero_01();
  if constexpr (kTwoOuts && kTwoRows) LinearTiles::zero_11();
  const int64_t step = kTile * a.x_bytes / 2;  // elements of x
  const uint16_t *w = a.w, *x = a.x;
  Ahead ahead = all_ahead;
  int64_t k = 0;
  for (; k + kTileColumns <= a.columns; k += kTileColumns, x += step) {
    for (int i = 0; i < lines; ++i) ahead.fetch();
    multiply_step<kTwoOuts, kTwoRows>(w + k, w + kTile * a.columns + k, a.columns * 2, x, x + a.x_stride, a.x_bytes);
  }
  if (k < a.columns) {  // what lies behind a row is not a number of it
    alignas(64) uint16_t rest[2 * kTile][kTileColumns] = {};
    for (int o = 0; o < outs; ++o) {
      for (int64_t i = k; i < a.columns; ++i) rest[o][i - k] = w[o * a.columns + i];
    }
    LinearTiles::memory_is_current(rest);
    multiply_step<kTwoOuts, kTwoRows>(rest[0], rest[kTile], sizeof rest[0], x, x + a.x_stride, a.x_bytes);
  }
  all_ahead = ahead;
}

// A tile of sums [output, row] becomes outputs of its rows.
inline void store_outputs(const NarrowBlock& block, int row, int rows, int out, int outs, const float* sums) {
  Vec y[kTile];
  for (int o = 0; o < kTile; ++o) y[o] = Simd::load(sums + o * kTile);
  Simd::transpose(y);
  const Vec bias = block.bias ? Simd::load_first(block.bias + out, outs) : Simd::zero();
  for (int r = 0; r < kTile; ++r) {
    if (r >= rows) break;
    float* to = block.y + (row + r) * block.y_stride + out;
    const Vec sum = block.bias ? Simd::add(y[r], bias) : y[r];
    outs == kTile ? Simd::store(to, sum) : Simd::store_first(to, sum, outs);
  }
}

// Up to 32 rows of x from `row` against up to 32 outputs from `out`. The tiles are configured for so many outputs.
inline void multiply_pair(const NarrowBlock& block, int row, int out, int outs, int lines, Ahead& ahead) {
  constexpr int kBytes = kTile * sizeof(float);
  const bool two_outs = outs > kTile, two_rows = block.rows - row > kTile;
  const TileOperands a{.w = block.w + out * block.columns,
                       .columns = block.columns,
                       .x = block.x + row / kTile * block.x_stride,
                       .x_stride = block.x_stride,
                       .x_bytes = 4 * block.tile_rows};
  const auto multiply = two_outs ? (two_rows ? multiply_tiles<true, true> : multiply_tiles<true, false>)
                                 : (two_rows ? multiply_tiles<false, true> : multiply_tiles<false, false>);
  multiply(a, outs, lines, ahead);
  alignas(64) float sums[2][2][kTile * kTile];  // [outputs, rows]
  LinearTiles::store_00(sums[0][0], kBytes);
  if (two_outs) LinearTiles::store_10(sums[1][0], kBytes);
  if (two_rows) LinearTiles::store_01(sums[0][1], kBytes);
  if (two_outs && two_rows) LinearTiles::store_11(sums[1][1], kBytes);
  LinearTiles::memory_is_current(sums);
  for (int i = 0; i < (two_outs ? 2 : 1); ++i) {
    for (int j = 0; j < (two_rows ? 2 : 1); ++j) {
      const int first_row = row + j * kTile, first_out = i * kTile;
      store_outputs(block, first_row, smaller(kTile, block.rows - first_row), out + first_out,
                    smaller(kTile, outs - first_out), sums[i][j]);
    }
  }
}

constexpr int kPairRows = 2 * kTile;
constexpr int kFewPairs = 2;  // so many pairs of tiles of x stay in the second cache beside the weights

// Goes over the outputs of a block, some at a time, with the tiles configured for them.
class OutputTiles {
 public:
  explicit OutputTiles(const NarrowBlock& block) : block_(block), most_(block.rows <= kDirectRows ? kTile : 2 * kTile) {
    LinearTiles::memory_is_current();
  }
  ~OutputTiles() { LinearTiles::release(); }
  int most() const { return most_; }
  int outs(int out) const { return smaller(most_, block_.outs - out); }
  void use(int out) {
    if (outs(out) == configured_) return;
    configured_ = outs(out);
    const int first = smaller(kTile, configured_);
    LinearTiles::configure({.left_rows = {first, configured_ - first},
                            .left_bytes = 2 * kTileColumns,
                            .right_rows = kTile,
                            .right_bytes = 4 * block_.tile_rows});
  }
  // The weights behind those of output `out` and its tile.
  Ahead behind(int out) const {
    const int next = out + outs(out);
    if (next < block_.outs) return {block_.w + next * block_.columns, outs(next) * block_.columns * 2};
    return {block_.next_w, block_.next_w ? most_ * block_.columns * 2 : 0};
  }

 private:
  const NarrowBlock& block_;
  int most_, configured_ = 0;
};

// Few rows: all of them for each 32 outputs, whose weights come from memory. Many: all outputs for each 32 rows, and
// the weights stay in the second cache.
void tiled_narrow_block(const NarrowBlock& block) {
  OutputTiles tiles(block);
  const int pairs = (block.rows + kPairRows - 1) / kPairRows;
  if (pairs <= kFewPairs) {
    for (int out = 0; out < block.outs; out += tiles.most()) {
      tiles.use(out);
      Ahead ahead = tiles.behind(out);
      for (int row = 0; row < block.rows; row += kPairRows) {
        multiply_pair(block, row, out, tiles.outs(out), tiles.most() / pairs, ahead);
      }
    }
    return;
  }
  constexpr int kXLines = 8;  // of the next 32 rows of x, with each step
  for (int row = 0; row < block.rows; row += kPairRows) {
    const uint16_t* next_x = block.x + (row + kPairRows) / kTile * block.x_stride;
    Ahead x(next_x, row + kPairRows < block.rows ? kPairRows * block.columns * 2 : 0);
    for (int out = 0; out < block.outs; out += tiles.most()) {
      tiles.use(out);
      Ahead w = tiles.behind(out);
      const bool first = row == 0;
      multiply_pair(block, row, out, tiles.outs(out), first ? tiles.most() : kXLines, first ? w : x);
    }
  }
}

// The bytes of a group of outputs as right tiles, one block of columns after another: i8 as they lie.
inline const char* group_tiles(const IntegerBlock& block, int out) {
  const char* w = static_cast<const char*>(block.w) +
                  out / kGroupRows * block.blocks * (kQuads * kQuadBytes) / (block.kind == WeightKind::i8 ? 1 : 2);
  if (block.kind == WeightKind::i8) return w;
  auto* to = static_cast<char*>(block.scratch);
  const __m512i mask = _mm512_set1_epi8(15), zero = _mm512_set1_epi8(8);
  for (int64_t b = 0; b < block.blocks; ++b) {
    for (int q = 0; q < kQuads / 2; ++q, w += kQuadBytes) {
      const __m512i both = _mm512_loadu_si512(w);
      char* low = to + (b * kQuads + q) * kQuadBytes;
      _mm512_store_si512(low, _mm512_sub_epi8(_mm512_and_si512(both, mask), zero));
      _mm512_store_si512(low + kQuads / 2 * kQuadBytes,
                         _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), zero));
    }
  }
  return to;
}

// 16 rows of x from `row` against the outputs of a group.
template <WeightKind kind>
class GroupProduct {
 public:
  GroupProduct(const IntegerBlock& block, const char* w, int row, int out)
      : block_(block),
        row_(row),
        out_(out),
        w_(w),
        x_(block.x.bytes + row * block.blocks * kBlockColumns),
        x_scales_(block.x.tile_scales + row * block.blocks) {
    if constexpr (kind == WeightKind::i4) scales_ = BlockScales(block, out);
  }

  void run(int lines, Ahead& all_ahead) {
    Vec total[kTile];
    for (int r = 0; r < kTile; ++r) total[r] = Simd::zero();
    const auto add = [&](int64_t b) __attribute__((always_inline)) {
      LinearTiles::memory_is_current(sums_);
      const auto& sums = sums_[b % 2];
      const float* x_scales = x_scales_ + b * kTile;
      Vec scale = Simd::zero();
      if constexpr (kind == WeightKind::i4) scale = scales_.at(b);
      for (int r = 0; r < kTile; ++r) {
        Vec sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[r]));
        if constexpr (kind == WeightKind::i4) sum = Simd::mul(sum, scale);
        total[r] = Simd::fma(sum, Simd::set1(x_scales[r]), total[r]);
      }
    };
    const int64_t blocks = block_.blocks;
    Ahead ahead = all_ahead;
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
      for (int i = 0; i < 2 * lines; ++i) ahead.fetch();
      multiply_0(b);
      multiply_1(b + 1);
      add(b);
      add(b + 1);
    }
    if (b < blocks) {
      multiply_0(b);
      add(b);
    }
    all_ahead = ahead;
    Vec done[kTile];  // in memory: the totals themselves stay in registers
    for (int r = 0; r < kTile; ++r) Simd::store(reinterpret_cast<float*>(&done[r]), total[r]);
    const int rows = smaller(kTile, block_.rows - row_);
    for (int r = 0; r < rows; ++r) finish_integers(block_, row_ + r, out_, done[r]);
  }

 private:
  static constexpr int kBlockBytes = kQuads * kQuadBytes;

  void multiply_0(int64_t b) {
    LinearTiles::zero_00();
    LinearTiles::load_left_0(x_ + b * kBlockColumns, block_.blocks * kBlockColumns);
    LinearTiles::load_right_0(w_ + b * kBlockBytes, kQuadBytes);
    LinearTiles::bytes_00();
    LinearTiles::store_00(sums_[0], kQuadBytes);
  }
  void multiply_1(int64_t b) {
    LinearTiles::zero_11();
    LinearTiles::load_left_1(x_ + b * kBlockColumns, block_.blocks * kBlockColumns);
    LinearTiles::load_right_1(w_ + b * kBlockBytes, kQuadBytes);
    LinearTiles::bytes_11();
    LinearTiles::store_11(sums_[1], kQuadBytes);
  }

  alignas(64) int32_t sums_[2][kTile][kTile];  // of blocks of columns: [row, output]
  const IntegerBlock& block_;
  int row_, out_;
  const char* w_;
  const int8_t* x_;
  const float* x_scales_;
  BlockScales scales_;
};

// Rows of x in whole tiles: memory holds rows rounded up to 16, and what lies in the last ones does not matter.
void tiled_integer_block(const IntegerBlock& block) {
  LinearTiles::memory_is_current();
  LinearTiles::configure(
      {.left_rows = {kTile, kTile}, .left_bytes = kBlockColumns, .right_rows = kQuads, .right_bytes = kQuadBytes});
  const int block_bytes = kQuads * kQuadBytes / (block.kind == WeightKind::i8 ? 1 : 2);
  const int64_t group_bytes = block.blocks * block_bytes;
  const int row_tiles = (block.rows + kTile - 1) / kTile;
  const int lines = static_cast<int>((block_bytes / kLineBytes + row_tiles - 1) / row_tiles);  // with each block
  for (int out = 0; out < block.outs; out += kTile) {
    const char* stored = static_cast<const char*>(block.w) + out / kTile * group_bytes;
    Ahead ahead(stored + group_bytes, group_bytes);
    if (out + kTile >= block.outs) ahead = Ahead(block.next_w, block.next_w ? group_bytes : 0);
    const char* w = group_tiles(block, out);
    LinearTiles::memory_is_current(w);
    for (int row = 0; row < block.rows; row += kTile) {
      if (block.kind == WeightKind::i8) {
        GroupProduct<WeightKind::i8>(block, w, row, out).run(lines, ahead);
      } else {
        GroupProduct<WeightKind::i4>(block, w, row, out).run(lines, ahead);
      }
    }
  }
  LinearTiles::release();
}

constexpr LinearTable tiled_functions() {
  return {.narrow = tiled_narrow_block, .pack_x = pack_x, .tiled_integers = tiled_integer_block};
}

}  // namespace
}  // namespace rootdk::cpu
