#pragma once

// The seam of the backward pass between ordinary code and the kernels of a target, as kernel_table.h is that of the
// forward pass: plain structs and a table of functions. Nothing here may contain code.

#include "cpu/kernel_table.h"

namespace rootdk::cpu {

// How a target cuts and packs. A block of queries has at most kBackwardRows rows.
struct BackwardGeometry {
  int element_bytes = 4;
  int panel = 0;                 // columns of a panel
  int rows = 0;                  // rows of a register tile
  int depth_multiple = 1;        // the depth of a product is a multiple of it
  int key_block = 0;             // keys of a block; a multiple of panel
  bool transposed_sums = false;  // gradients of a block of keys are summed as [dim, key_block]
};

constexpr int kBackwardRows = 192;

// What one query row brings along, beside what it brought to the forward pass. Pointers to gradients are null where
// they are not asked for; those with a key index point at key 0 of the sequence.
struct BackwardRow {
  QueryRow query;                     // a row without a gradient sees no key
  float lse = 0;                      // in base 2, finite
  float dot = 0;                      // g_out . out - g_lse
  float grad_entropy = 0;             // g_entropy
  float entropy = 0;                  // H + p_sink
  float* bias = nullptr;              // += ds, bias_stride apart
  float* bias_sum = nullptr;          // += the sum of ds over keys
  float* column_mass = nullptr;       // += p, mass_stride apart
  double* relative = nullptr;         // [entries] += ds
  double* alibi = nullptr;            // += -ds |distance|
  float* additive = nullptr;          // [head_dim in whole panels] += g tanh(q + k)
  const float* additive_v = nullptr;  // [head_dim in whole panels], padded with zeros
};

// One block of keys as the kernels read it; layouts as in PackedKeys.
struct BackwardKeys {
  int64_t begin = 0;             // first key of the sequence
  int keys = 0;                  // at most key_block
  const void* k = nullptr;       // panels of the transposed keys
  const void* k_rows = nullptr;  // panels of the keys, key_block rows each
  const void* v = nullptr;       // panels of the transposed values
  bool k_not_finite = false;
  // Or transposed, where the geometry says so.
  float* grad_k = nullptr;  // [key_block, head_columns] of d loss / d score q, to be scaled; or null
  float* grad_v = nullptr;  // [key_block, value_columns]; or null
};

// One block of queries. `_left` are left operands, [rows, dim padded]; `_rows` are what pack_query_rows makes of them.
struct BackwardQueries {
  const BackwardRow* rows = nullptr;
  int count = 0;
  const void* q_left = nullptr;
  const void* q_rows = nullptr;
  const void* grad_out_left = nullptr;
  const void* grad_out_rows = nullptr;
  bool q_not_finite = false, grad_out_not_finite = false;
  float* grad_q = nullptr;  // [rows, head_columns], to be scaled; or null
};

struct BackwardTile {
  const ScoreRule* rule = nullptr;
  int head_dim = 0, value_dim = 0;
  float dropout_scale = 1.0f;  // of the weights that are kept
  int64_t bias_stride = 0, mass_stride = 0;
  bool entropy = false;  // some row has a gradient of its entropy
  BackwardQueries queries;
  BackwardKeys keys;
  void* scratch = nullptr;  // backward_scratch_bytes, 64-byte aligned
};

// Rows of a gradient on their way out: to = from * scale. For the cosine score, from is the gradient of the normalised
// row, and `source` the row itself.
struct GradientRows {
  const float* from = nullptr;  // [rows, from_stride]
  int64_t from_stride = 0;
  bool transposed = false;  // from is [dim, from_stride]
  int rows = 0, dim = 0;
  float scale = 1.0f;
  void* to = nullptr;
  int64_t to_stride = 0;
  ElementKind kind = ElementKind::f32;
  const void* source = nullptr;  // null: plain
  int64_t source_stride = 0;
  ElementKind source_kind = ElementKind::f32;  // that of a tile of a larger call may differ from the gradient's
};

// to[r] = a[r] . b[r], rows of the caller's tensors.
struct RowDots {
  const void* const* a = nullptr;
  const void* const* b = nullptr;
  int count = 0, dim = 0;
  ElementKind kind = ElementKind::f32;
  float* to = nullptr;
};

struct BackwardTable {
  BackwardGeometry (*geometry)(int head_dim, int value_dim) = nullptr;
  void (*pack_rows)(const SourceRows& source, void* packed, float* scratch) = nullptr;
  void (*pack_keys)(const SourceRows& source, void* packed, float* scratch) = nullptr;
  // scratch: only where the rows are normalised.
  bool (*pack_values)(const SourceRows& source, void* packed, int64_t panel_stride, float* scratch) = nullptr;
  // A block of left operands, as the products that sum over queries read it: panels of kBackwardRows rows, rounded up
  // to whole panels; or where sums are transposed [dim padded, kBackwardRows]. True: it holds an infinity or a NaN.
  bool (*pack_query_rows)(const SourceRows& source, void* packed) = nullptr;
  size_t (*scratch_bytes)(int head_dim, int value_dim) = nullptr;
  void (*tile)(const BackwardTile& tile) = nullptr;
  void (*dots)(const RowDots& dots) = nullptr;
  void (*store_rows)(const GradientRows& rows, float* scratch) = nullptr;
};

// One function per target that this build has; see targets/.
const BackwardTable& backward_baseline_kernels();
const BackwardTable& backward_avx2_kernels();
const BackwardTable& backward_avx512_kernels();
const BackwardTable& backward_avx512bf16_kernels();
const BackwardTable& backward_amx_kernels();
const BackwardTable& backward_neon_kernels();
const BackwardTable& backward_neonbf16_kernels();
const BackwardTable& backward_wasm_kernels();

}  // namespace rootdk::cpu
