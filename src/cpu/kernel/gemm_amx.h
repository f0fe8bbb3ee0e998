#pragma once

// Products of bf16 on AMX tiles, accumulated in f32. Needs Tiles (simd/amx_tiles.h). Included once per target: internal
// linkage.

#include "cpu/kernel/gemm_bf16.h"

namespace rootdk::cpu {
namespace {

// Products of 32 rows with panels of two tiles, 2 x 2 tiles at a time, spread between other work. A depth of 32 is four
// loads and four multiplications of tiles, which multiply_tiles() does in two parts: what goes between them hides the
// loads of the second. Left operands are read in whole tiles: memory holds rows rounded up to 16, and what lies in the
// last ones does not matter.
class TileProducts {
 public:
  static constexpr int kTile = 16;  // rows and columns of a tile
  static constexpr int kPanel = 2 * kTile;
  static constexpr int kDepthMultiple = 32;

  // c [32, panels] = left [32, depth] right [panels, depth / 2, right_row], or added to what c holds.
  struct Product {
    const uint16_t* left;
    ptrdiff_t left_stride;  // elements from row to row
    const uint16_t* right;
    ptrdiff_t right_stride;            // elements from panel to panel
    ptrdiff_t right_row = 2 * kPanel;  // elements from pair to pair in depth
    int depth, panels;
    float* c;
    ptrdiff_t ldc;
    bool two_rows;  // more than one tile of rows
    bool from_zero;
  };

  TileProducts() { memory_is_current(); }

  // At most two, in order.
  void add(const Product& product) {
    products_[count_++] = product;
    panels_ += product.panels;
    remaining_ += 2 * (product.depth / kDepthMultiple) * product.panels;
  }
  int panels() const { return panels_; }

  // From here on, `ticks` calls of tick() do all products, or nearly all.
  void spread_over(int ticks) { interval_ = left_ = remaining_ == 0 ? ticks + 1 : larger(1, ticks / remaining_); }
  [[gnu::always_inline]] void tick() {
    if (--left_ > 0) return;
    left_ = interval_;
    if (remaining_ > 0) multiply_tiles();
  }
  void finish() {
    while (remaining_ > 0) multiply_tiles();
    memory_is_current();
  }

 private:
  // The intrinsics do not tell the compiler that they read memory: what was stored must be there.
  static void memory_is_current() { __asm__ volatile("" ::: "memory"); }

  [[gnu::always_inline]] void multiply_tiles() {
    Product& p = products_[current_];
    const uint16_t* left = p.left + depth_;
    const ptrdiff_t left_bytes = p.left_stride * static_cast<ptrdiff_t>(sizeof(uint16_t));
    --remaining_;
    second_part_ = !second_part_;
    if (second_part_) {
      if (depth_ == 0) start(p);
      const uint16_t* right = p.right + depth_ / 2 * p.right_row;
      const ptrdiff_t right_bytes = p.right_row * static_cast<ptrdiff_t>(sizeof(uint16_t));
      Tiles::load_left_0(left, left_bytes);
      Tiles::load_right_0(right, right_bytes);
      Tiles::multiply_00();
      Tiles::load_right_1(right + 2 * kTile, right_bytes);
      Tiles::multiply_01();
      return;
    }
    if (p.two_rows) {
      Tiles::load_left_1(left + kTile * p.left_stride, left_bytes);
      Tiles::multiply_10();
      Tiles::multiply_11();
    }
    depth_ += kDepthMultiple;
    if (depth_ == p.depth) end(p);
  }

  void start(const Product& p) {
    if (p.from_zero) {
      Tiles::zero();
      return;
    }
    const ptrdiff_t bytes = p.ldc * static_cast<ptrdiff_t>(sizeof(float));
    Tiles::load_00(p.c, bytes);
    Tiles::load_01(p.c + kTile, bytes);
    if (p.two_rows) {
      Tiles::load_10(p.c + kTile * p.ldc, bytes);
      Tiles::load_11(p.c + kTile * p.ldc + kTile, bytes);
    }
  }

  void end(Product& p) {
    const ptrdiff_t bytes = p.ldc * static_cast<ptrdiff_t>(sizeof(float));
    Tiles::store_00(p.c, bytes);
    Tiles::store_01(p.c + kTile, bytes);
    if (p.two_rows) {
      Tiles::store_10(p.c + kTile * p.ldc, bytes);
      Tiles::store_11(p.c + kTile * p.ldc + kTile, bytes);
    }
    depth_ = 0;
    p.c += kPanel;
    p.right += p.right_stride;
    if (--p.panels == 0) ++current_;
  }

  Product products_[2];
  int count_ = 0, current_ = 0;
  int depth_ = 0;             // of the panel at hand
  bool second_part_ = false;  // is next
  int panels_ = 0;            // of all products
  int remaining_ = 0;         // calls of multiply_tiles() that are left
  int interval_ = 1, left_ = 1;
};

// Products in bf16 on tiles. Panels are as those of Bf16Gemm, two tiles wide.
struct AmxGemm {
  using Element = uint16_t;
  using Unit = uint32_t;
  static constexpr int kTile = TileProducts::kTile;
  static constexpr int kDepthMultiple = TileProducts::kDepthMultiple;
  static constexpr int kRows = 2 * kTile;
  static constexpr int kPanel = TileProducts::kPanel;
  static constexpr int kUnit = 2;
  static constexpr int kTileKeys = 1024;  // large: each score tile begins and ends with products alone
  static constexpr int kTileRowBytes = 1024;
  static constexpr int kRowPadding = 32;  // keeps the rows of a tile out of each other's cache sets
  static constexpr int kBlockRows = 256;  // tiles that come from beyond L2 serve many rows
  static constexpr int kLeftRows = kTile;

  // The tile configuration belongs to the thread.
  struct Thread {
    Thread() { Tiles::configure(); }
    ~Thread() { Tiles::release(); }
  };

  static int64_t peak(int64_t rounds, float* sum) {
    alignas(64) static const uint16_t zeros[kTile * kDepthMultiple] = {};
    alignas(64) float result[kTile * kTile];
    Tiles::zero();
    Tiles::load_left_0(zeros, 64);
    Tiles::load_left_1(zeros, 64);
    Tiles::load_right_0(zeros, 64);
    Tiles::load_right_1(zeros, 64);
    for (int64_t round = 0; round < rounds; ++round) {
      Tiles::multiply_00();
      Tiles::multiply_01();
      Tiles::multiply_10();
      Tiles::multiply_11();
    }
    Tiles::store_00(result, 64);
    *sum = result[0];
    return rounds * 4 * kTile * kTile * kDepthMultiple * 2;
  }
  static float widen(uint16_t x) { return widen_bf16(x); }
  // Below 2^-126 weights vanish on their way to bf16.
  static Vec exp2_of_score(Vec x) { return rootdk::cpu::exp2_of_score(x); }
  static void store_weights(uint16_t* to, Vec first, Vec second) { store_bf16_pair(to, first, second); }

  // One panel of columns.
  static void multiply(int rows, int, Left<uint32_t> a, const uint16_t* panel, int depth, float* c, ptrdiff_t ldc) {
    take(rows, a, panel, depth, c, ldc, true);
  }

 protected:
  static void take(int rows, Left<uint32_t> a, const uint16_t* panel, int depth, float* c, ptrdiff_t ldc,
                   bool from_zero) {
    TileProducts products;
    products.add({.left = reinterpret_cast<const uint16_t*>(a.data),
                  .left_stride = kUnit * a.row_stride,
                  .right = panel,
                  .right_stride = 0,
                  .depth = depth,
                  .panels = 1,
                  .c = c,
                  .ldc = ldc,
                  .two_rows = rows > kTile,
                  .from_zero = from_zero});
    products.finish();
  }
};

}  // namespace
}  // namespace rootdk::cpu
