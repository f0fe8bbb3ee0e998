#pragma once

// The seam between the ordinary code and the kernels of products with stored weights, as kernel_table.h is for the
// fused forward: plain structs and a table of functions. Nothing here may contain code.

#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {

enum class WeightKind : int32_t { f32, bf16, f16, i8, i4 };

// Rows of x against consecutive rows of weights that are floats: y[r * y_stride + o] = x_r . w_o + bias[o].
//
// Every element is one chain of multiply-adds over vectors of columns, from the first to the last, and one tree of
// additions over its lanes. No other row and no other output takes part: an element has the same bits in any block.
struct LinearBlock {
  const float* x = nullptr;  // [rows, columns]
  int rows = 0;
  int64_t columns = 0;
  WeightKind kind = WeightKind::f32;
  const void* w = nullptr;       // [outs, columns]
  const void* next_w = nullptr;  // what the thread multiplies afterwards: it is asked for ahead of time; or null
  int64_t row_bytes = 0;         // of w
  int outs = 0;
  const float* bias = nullptr;  // [outs], or null
  float* y = nullptr;
  int64_t y_stride = 0;
  void* scratch = nullptr;  // panel: panel_bytes(columns), 64-byte aligned
};

// Rows of x that are rounded to bf16 against rows of bf16 weights. The promise is that of LinearBlock, with pairs of
// columns for columns.
struct NarrowBlock {
  const uint16_t* x = nullptr;  // [rows, columns], rows x_stride apart; or tiles of rows (LinearTable::pack_x)
  int64_t x_stride = 0;         // from row to row, or from tile to tile
  int tile_rows = 0;            // of a tile
  int rows = 0;
  int64_t columns = 0;
  const uint16_t* w = nullptr;       // [outs, columns]
  const uint16_t* next_w = nullptr;  // as in LinearBlock
  int outs = 0;
  const float* bias = nullptr;  // [outs], or null
  float* y = nullptr;
  int64_t y_stride = 0;
};

// Rows of x as integers, in blocks of 32 columns: what integer weights multiply. src/reference/linear.cpp defines them.
struct IntegerRows {
  int8_t* bytes = nullptr;    // [rows, blocks, 32]
  int16_t* pairs = nullptr;   // [rows, blocks, 8, 4]: columns 0, 2, 1 and 3 of each 4, where the target wants them
  float* scales = nullptr;    // [rows, blocks]
  int32_t* starts = nullptr;  // [rows, blocks]: where the sum of a block begins, which undoes the zero of the weights
  // [tiles of 16 rows, blocks, 16]: the scales as tiles want them, where the target has them
  float* tile_scales = nullptr;
  float* factors = nullptr;  // [rows]: 1, or what the scales of a row with huge numbers were divided by
};

// Rows of x against consecutive rows of integer weights, in the order of core/linear_call.h.
//
// The sum of a block of columns is an exact integer. Every element is one chain of multiply-adds over the blocks, from
// the first to the last.
struct IntegerBlock {
  IntegerRows x{};
  int rows = 0;
  int64_t blocks = 0;
  WeightKind kind = WeightKind::i8;
  const void* w = nullptr;                 // of the first group of 16 rows
  const void* next_w = nullptr;            // as in LinearBlock
  const float* row_scales = nullptr;       // i8: [outs]
  const uint16_t* block_scales = nullptr;  // i4: bf16 [groups, blocks, 16]
  int outs = 0;
  const float* bias = nullptr;  // [outs], or null
  float* y = nullptr;
  int64_t y_stride = 0;
  void* scratch = nullptr;  // unpacked_bytes(blocks), 64-byte aligned
};

// The most rows of a direct block.
constexpr int kDirectRows = 4;

// Tiles of x: rows, and what columns are padded to.
constexpr int kXTileRows = 16, kXTileColumns = 32;
constexpr int kTiledIntegerRows = 13;

struct LinearTable {
  // Few rows: weights are widened as they come from memory.
  void (*direct)(const LinearBlock& block) = nullptr;
  // Many rows: weights are widened once, some outputs at a time.
  void (*panel)(const LinearBlock& block) = nullptr;
  size_t (*panel_bytes)(int64_t columns) = nullptr;
  // Any number of rows; null where the target has no products of bf16.
  void (*narrow)(const NarrowBlock& block) = nullptr;
  // `count` numbers as bf16.
  void (*round_bf16)(const float* x, int64_t count, uint16_t* to) = nullptr;
  // How `narrow` takes x where it is not null: as tiles of kXTileRows rows, in which columns are padded to a multiple
  // of kXTileColumns: [pairs of columns, tile_rows, 2]. This rounds and packs `rows` of them.
  void (*pack_x)(const float* x, int rows, int tile_rows, int64_t columns, uint16_t* to) = nullptr;
  // One row of x as integers for weights of this kind: the fields of `to` point to the row.
  void (*round_row)(const float* x, int64_t columns, WeightKind kind, const IntegerRows& to) = nullptr;
  bool wants_pairs = false;  // IntegerRows::pairs
  void (*integers)(const IntegerBlock& block) = nullptr;
  size_t (*unpacked_bytes)(int64_t blocks) = nullptr;
  // The same on tiles, where the target has them: faster from kTiledIntegerRows rows on. Memory of x holds rows rounded
  // up to kXTileRows, and what is in the last ones does not matter.
  void (*tiled_integers)(const IntegerBlock& block) = nullptr;
};

// One function per target that this build has; see targets/linear_*.cpp.
const LinearTable& baseline_linear();
const LinearTable& avx2_linear();
const LinearTable& avx512_linear();
const LinearTable& avx512bf16_linear();
const LinearTable& amx_linear();  // what is better than avx512bf16's alone
const LinearTable& neon_linear();
const LinearTable& neondot_linear();
const LinearTable& neonbf16_linear();
const LinearTable& wasm_linear();

}  // namespace rootdk::cpu
