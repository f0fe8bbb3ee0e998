#pragma once

// What the host hands to the backward kernels.

#include <cuda.h>

#include "cuda/common/logit_rule.h"
#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

struct BackwardMaps {
  CUtensorMap q, k, v, grad_out;
};

// How tiles of rows are numbered, so that the workspace is hardly larger than the rows need. The tiles of a sequence
// have consecutive numbers in their plane: from 0 on or, for packed sequence s, from starts[s] / block + s on, which
// leaves at most one number per sequence unused.
struct TileGrid {
  int planes = 0;  // heads of all batch entries; packed: heads
  int tiles = 0;   // numbers of a plane
};

// In which order key tiles add to the gradient of a query tile (tiles.cuh). Counts are powers of two, so that they cost
// little: one thread computes with them between two adds, while other blocks wait.
struct AddOrder {
  bool ring = false;            // each key tile starts at a different query tile
  int ring_shift = 0;           // ring: the next key tile starts 1 << ring_shift query tiles later
  int sum_shift = 0;            // log2 of the partial sums
  bool parts = false;           // the partial sums come from the separate pass over queries (queries.cuh)
  bool rounds = false;          // the key tile that adds last rounds and stores the sum; otherwise `finish` does
  int ascending = 0;            // the first so many key tiles walk upwards from the diagonal, with separate sums
  int ascending_sum_shift = 0;  // log2 of those

  __host__ __device__ int ascending_sums() const { return ascending > 0 ? 1 << ascending_sum_shift : 0; }
  __host__ __device__ int sums() const { return ascending_sums() + (1 << sum_shift); }
};

struct BackwardParams {
  LogitRule rule;
  int left = 0, right = 0;              // row i sees the keys [position - left, position + right]; causal: right = 0
  DeviceTensor q, k, v, out, grad_out;  // [batch, heads, rows, columns]
  DeviceView<const float, 3> lse;       // [batch, heads, q_len]
  DeviceView<const float, 3> grad_lse;  // upstream gradient of lse; null: none
  DeviceView<const float, 3> entropy, grad_entropy;  // likewise; both or neither
  DeviceTensor grad_q, grad_k, grad_v;               // null: not asked for
  float scale_log2 = 1;                              // scale * log2(e)
  Softcap softcap;
  float inverse_cap_log2 = 0;  // 1 / softcap.cap_log2

  // Workspace. Per row: what is added to its scores (negative_lse) and subtracted from the gradient of its weights
  // (delta). Per query tile: the unscaled gradient of q in the order of accumulators, and which key tile may add to it
  // next.
  TileGrid queries, keys;
  float* negative_lse = nullptr;       // -lse * log2(e); -inf: the row does not exist or sees no key
  bool alibi_in_rows = false;          // negative_lse includes -slope * (row - the tile's first row)
  float* delta = nullptr;              // out . grad_out - grad_lse + grad_entropy (entropy + weight of the sink)
  float* grad_entropy_rows = nullptr;  // null: the entropy has no upstream gradient
  float* grad_q_tiles = nullptr;       // [sums, query tiles, elements]
  int* turns = nullptr;                // [sums, query tiles]
  int* suspects = nullptr;             // per key tile, then per query tile: 1 if a gradient is not finite
  int* ticket = nullptr;               // the next work item

  int items = 0;                 // key tiles of all planes
  int heads_together = 1;        // planes processed together, so that their tiles stay in L2 and their waits overlap
  int query_heads_together = 1;  // the same for the separate pass of the gradient of q
  AddOrder order;
};

}  // namespace rootdk::cuda::hopper
