#pragma once

// What the host hands to the forward and decode kernels.

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace rootdk::cuda::hopper {

// A tensor indexed (batch, head, row[, column]); strides in elements, 0 where it is broadcast.
struct DeviceTensor {
  void* data = nullptr;  // null: not given
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;
};

// A vector; stride in elements.
template <class T>
struct DeviceVector {
  const T* data = nullptr;  // null: not given
  std::int64_t stride = 0;
};

struct ForwardMaps {
  CUtensorMap q, k, v;
  CUtensorMap out;  // boxes of the 16 rows that a warp holds; the forward kernel alone uses it
};

enum class BiasType : std::int32_t { none, f32, element };

// cap tanh(scale s / cap) in units of log2. Up to |s| <= small it is s (odd[0] + odd[1] s^2 + odd[2] s^4).
struct Softcap {
  float cap_log2 = 0;  // cap * log2(e); 0: no cap
  float inverse = 0;   // scale / cap
  float small = 0;
  float odd[3] = {};
  float tiny = 0;  // up to here s (tiny_odd[0] + tiny_odd[1] s^2)
  float tiny_odd[2] = {};
};

// Terms that only some variants use. Logits are in units of log2: everything is multiplied by log2(e).
struct LogitTerms {
  Softcap softcap;
  DeviceVector<float> alibi_slopes;  // [heads]
  DeviceTensor relative_table;       // head_stride, column_stride over the entries
  int relative_entries = 0, relative_zero = 0;
  BiasType bias_type = BiasType::none;
  DeviceTensor bias;
  DeviceTensor mask;  // bytes: 0 drops the key
  std::uint32_t dropout_threshold = 0;
  float dropout_keep_scale = 1;
  std::uint64_t dropout_seed = 0;
};

// The statistics of a row. An index, so that each thread of a row can store one.
enum RowValue { kLse, kMaxLogit, kMaxWeight, kEntropy, kSumP2, kRowValues };

// Attention in e4m3: what turns products of e4m3 numbers into logits and outputs. `batch` is 1 for packed sequences.
struct Fp8Scales {
  // [batch, heads, q_rows]; x: the row's scale times scale_log2, y: what the mean key adds to all logits of the row, in
  // log2. null: not e4m3
  const float2* q = nullptr;
  const float* k = nullptr;          // [batch, kv_heads, key_blocks]
  const float* v_columns = nullptr;  // [sequences, kv_heads, 2, head_dim of the kernel]: scales of v, and its mean
  int key_blocks = 0;                // of the keys of a tile; those of packed sequence s begin at kv_begin / tile + s
  bool out_f16 = false;              // else bf16
};

struct ForwardParams {
  DeviceTensor out;
  DeviceTensor q, k, v;                 // the tensors behind the maps
  DeviceTensor row_values[kRowValues];  // f32 [batch, heads, q_len], in the order of RowValue
  int stats_stride = 1;                 // entropy and sum_p2 of one query tile in stats_stride

  int sequences = 0, heads = 0, group = 1;
  int q_len = 0, kv_len = 0;    // for packed sequences: upper bounds
  int q_rows = 0, kv_rows = 0;  // of the tensors; packed sequences lie within them
  int head_dim = 0, value_dim = 0;

  // Row i sees the keys [position - left, position + right] of its sequence. Causal: right = 0.
  int left = 0, right = 0;
  DeviceVector<std::int32_t> kv_lengths;
  DeviceVector<std::int32_t> q_starts, kv_starts;  // packed sequences

  float scale = 1, scale_log2 = 1;  // logit = scale * score; scale_log2 = scale * log2(e)
  DeviceVector<float> sinks;
  Fp8Scales fp8;
  LogitTerms terms;

  int q_tiles = 0;              // query tiles of the longest sequence
  int tiles = 0;                // q_tiles * heads * sequences
  int heads_together = 1;       // heads processed together, so that their k and v stay in L2
  int tile_share = 0;           // consecutive tiles of a block, so that it stays with one head; 0: see TileDealer
  int* tile_counter = nullptr;  // zero at the start; null: tiles are assigned in a fixed order

  // Decode: parts of the keys, and key tiles of a part. Rows of a part: [query tiles, kv_heads, tile_rows], where row r
  // is query r / group of head r % group.
  int splits = 1, split_tiles = 0;
  int query_tiles = 0, tile_rows = 0;
  float* partial_out = nullptr;    // [splits, rows, value_dim], unnormalised
  float4* partial_sums = nullptr;  // [splits, rows] of RowSums; null: a block writes the output itself

  int tall_tiles = 0;  // query tiles of a head with all warpgroups; those after them have one less (MixedConfig)
  int short_rows = 0;  // rows of a query tile of the kernel for few keys
};

// "No limit" for left and right: lengths stay below it, and sums of two do not overflow.
inline constexpr int kNoLimit = 1 << 29;

}  // namespace rootdk::cuda::hopper
