#pragma once

// The seam between the ordinary code and the kernels of products with stored weights, as kernel_table.h is for the
// fused forward: plain structs and a table of functions. Nothing here may contain code.

#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {

enum class WeightKind : int32_t { f32, bf16, f16, i8, i4 };

// Rows of x against consecutive rows of the weights: y[r * y_stride + o] = x_r . w_o + bias[o].
//
// Every element is one chain of multiply-adds over vectors of columns, from the first to the last, and one tree of
// additions over its lanes. No other row and no other output takes part: an element has the same bits in any block.
struct LinearBlock {
  const float* x = nullptr;  // [rows, columns]
  int rows = 0;
  int64_t columns = 0;
  WeightKind kind = WeightKind::f32;
  const void* w = nullptr;                 // [outs, columns]
  int64_t row_bytes = 0;                   // of w
  const float* row_scales = nullptr;       // i8: [outs]
  const uint16_t* block_scales = nullptr;  // i4: bf16 [outs, columns / 32]
  int outs = 0;
  const float* bias = nullptr;  // [outs], or null
  float* y = nullptr;
  int64_t y_stride = 0;
  void* scratch = nullptr;  // panel: panel_bytes(columns), 64-byte aligned
};

// The most rows of a direct block, and the most outputs of a panel.
constexpr int kDirectRows = 4;
constexpr int kPanelOuts = 16;

struct LinearTable {
  // Few rows: weights are widened as they come from memory.
  void (*direct)(const LinearBlock& block) = nullptr;
  // Many rows: up to kPanelOuts rows of weights are widened once.
  void (*panel)(const LinearBlock& block) = nullptr;
  size_t (*panel_bytes)(int64_t columns) = nullptr;
};

// One function per target that this build has; see targets/linear_*.cpp.
const LinearTable& baseline_linear();
const LinearTable& avx2_linear();
const LinearTable& avx512_linear();
const LinearTable& neon_linear();
const LinearTable& wasm_linear();

}  // namespace rootdk::cpu
