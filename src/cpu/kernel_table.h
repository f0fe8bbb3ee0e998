#pragma once

// The interface between the ordinary code of src/cpu and the kernels, which are compiled once per target with that
// target's instructions: plain structs and a table of functions. Nothing here may contain code.

#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {

enum class ElementKind : int32_t { f32, bf16, f16 };

// Rows in the caller's tensor: element (i, d) is at data + (i * row_stride + d) elements.
struct SourceRows {
  const void* data = nullptr;
  int64_t row_stride = 0;
  ElementKind kind = ElementKind::f32;
  int rows = 0;
  int dim = 0;
  bool normalise = false;  // divide each row by its length (the cosine score); f32 targets only
};

// How a target lays out packed operands. An element is what the products read: f32, or bf16 where a target has a bf16
// product. src/cpu/kernel/README.md, "The product", has the layouts.
struct Geometry {
  int element_bytes = 4;
  int panel = 0;           // columns of a panel
  int rows = 0;            // rows of a register tile
  int block_rows = 0;      // the most rows of a block; a multiple of rows
  int left_rows = 1;       // left operands are read in whole groups of so many rows
  int depth_multiple = 1;  // the depth of a product is a multiple of it
  int tile_keys = 0;       // keys that are scored at once; a multiple of panel
  bool fused = true;       // a multiply-add rounds once, so that x of the largest score is what rounding left, not 0
};

// The keys and values of one tile or of several tiles in order, as the kernels read them.
//   keys   [panels of keys, head_dim padded, panel]   the transposed keys
//   values [panels of value_dim, keys, panel]         value_stride elements from one panel of value_dim to the next
struct PackedKeys {
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t value_stride = 0;
  int64_t begin = 0, end = 0;                  // keys of the sequence that are here; begin is a multiple of tile_keys
  const uint8_t* values_not_finite = nullptr;  // [tiles from begin]: the tile holds an infinity or a NaN
};

// Bias, mask and tables of one row, as pointers to key 0 of the sequence.
struct QueryRow {
  const void* q = nullptr;             // [head_dim], the caller's element type
  void* out = nullptr;                 // [value_dim], the caller's element type
  int64_t position = 0;                // key position of the query
  int64_t key_begin = 0, key_end = 0;  // what causal, window and length leave
  const void* bias = nullptr;
  const uint8_t* mask = nullptr;
  const uint8_t* block_mask = nullptr;
  const float* relative = nullptr;  // [entries]
  const float* additive = nullptr;  // [head_dim]
  float alibi_slope = 0.0f;
  uint32_t query = 0, head = 0, batch = 0;  // numbers of the dropout counter
};

enum class ScoreKind : int32_t { dot, additive };

// What happens to a score on its way to a weight; one for a whole call. Logits inside the kernels are in base 2.
struct ScoreRule {
  ScoreKind score = ScoreKind::dot;
  float scale = 1.0f;      // scale / temperature * log2(e); positive unless `transforms`
  float cap = 0.0f;        // softcap c * log2(e): logit = cap tanh(score * cap_scale); 0: none
  float cap_scale = 0.0f;  // scale / temperature / c
  bool has_bias = false, has_mask = false, has_block_mask = false, has_relative = false, has_alibi = false;
  ElementKind bias_kind = ElementKind::f32;
  int64_t bias_stride = 0, mask_stride = 0, block_mask_stride = 0, relative_stride = 0, additive_stride = 0;
  int64_t block_keys = 1;
  int64_t relative_entries = 0, relative_zero = 0;
  uint32_t dropout_threshold = 0;  // of 65536; 0: no dropout
  uint64_t dropout_seed = 0;
  bool rounds_weights = false;    // to e4m3, after they are summed (rootdk/fp8.h)
  int64_t dropout_first_key = 0;  // the number that key 0 has in the dropout counter; a multiple of 8

  bool transforms = false;  // logits are formed before the exponential, instead of folding the scale into it
};

// The running softmax of each row: the largest score, the sum of weights, and for the statistics the sum of x 2^x and
// of 2^2x, all with x = score * rule.scale - round(max * rule.scale); out is the weighted sum of values so far. Where
// the rule transforms, scores are logits already and the scale is 1.
struct RowStates {
  float* max = nullptr;       // [rows]
  float* sum = nullptr;       // [rows]
  float* weighted = nullptr;  // [rows]; null: no statistics
  float* squares = nullptr;   // [rows]
  float* out = nullptr;       // [rows, out_stride]
  int64_t out_stride = 0;     // value_dim rounded up to whole panels
};

// Sums of weights over runs of keys for the pooled map: segment s covers the keys [bounds[s], bounds[s + 1]), no
// segment crosses a tile; sums[row * segments + s] is relative to the scaled maximum maxima[row * segments + s].
struct PooledSegments {
  const int64_t* bounds = nullptr;
  int64_t segments = 0;
  float* sums = nullptr;
  float* maxima = nullptr;
};

// Rows of memory: row i is `bytes` bytes at data + i * stride.
struct MemoryRows {
  const void* data = nullptr;
  int64_t stride = 0;
  int rows = 0, bytes = 0;
};
// What will be read or written after a block of rows.
struct SoonNeeded {
  static constexpr int kAreas = 4;
  MemoryRows areas[kAreas];
};

// One block of query rows over the packed keys of a round.
struct ForwardBlock {
  const ScoreRule* rule = nullptr;
  const QueryRow* rows = nullptr;
  int row_count = 0;
  int head_dim = 0, value_dim = 0;
  const void* q = nullptr;  // the left operand: packed by pack_rows, or the tensor itself where it has that layout
  int64_t q_stride = 0;     // elements from row to row
  PackedKeys keys;
  RowStates state;
  bool first_keys = false;  // state.out is empty: it is written, not added to
  PooledSegments pooled;
  SoonNeeded soon;
  void* scratch = nullptr;  // forward_scratch_bytes, 64-byte aligned
};

// Weights of rows whose maximum (as in RowStates) and normaliser are known: weight = 2^x * factor.
struct WeightsBlock {
  ForwardBlock block;
  const float* max = nullptr;       // [rows]
  const float* factor = nullptr;    // [rows]
  float* column_sums = nullptr;     // [keys.end - keys.begin]: the weights of all rows are added; or null
  float* const* weights = nullptr;  // [rows]: where the row of weights goes, key 0 of the sequence first; or null
  int64_t weights_stride = 1;
};

struct KernelTable {
  const char* name = nullptr;
  Geometry (*geometry)(int head_dim, int value_dim) = nullptr;
  // Rows as the left operand: [rows, dim padded to depth_step].
  void (*pack_rows)(const SourceRows& source, void* packed, float* scratch) = nullptr;
  // Keys as panels of their transpose: [panels of keys, dim padded, panel]; the last panel is filled with zeros.
  void (*pack_keys)(const SourceRows& source, void* packed, float* scratch) = nullptr;
  // Values as panels: panel p of value_dim begins at packed + p * panel_stride elements, keys rounded up to whole
  // panels with zeros. Returns whether any value is infinite or NaN.
  bool (*pack_values)(const SourceRows& source, void* packed, int64_t panel_stride) = nullptr;
  size_t (*forward_scratch_bytes)(int head_dim, int value_dim) = nullptr;
  void (*forward_block)(const ForwardBlock& block) = nullptr;
  // out rows = state.out * factor[row], in the caller's element type.
  void (*store_rows)(const ForwardBlock& block, const float* factor, ElementKind kind) = nullptr;
  void (*weights_block)(const WeightsBlock& block) = nullptr;
  // Runs the target's multiply-adds on registers alone and returns how many operations that were.
  int64_t (*peak)(int64_t rounds, float* sum) = nullptr;
};

// One function per target that this build has; see targets/.
const KernelTable& baseline_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512bf16_kernels();
const KernelTable& amx_kernels();
const KernelTable& neon_kernels();
const KernelTable& neonbf16_kernels();
const KernelTable& wasm_kernels();

}  // namespace rootdk::cpu
