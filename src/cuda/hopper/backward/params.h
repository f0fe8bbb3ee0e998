#pragma once

// What the host hands to the backward kernels.

#include <cuda.h>

#include "cuda/common/logit_rule.h"
#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

struct BackwardMaps {
  CUtensorMap q, k, v, grad_out;
};

// Tiles of rows are numbered by slots, so that workspace is as long as the rows are. A sequence's tiles lie side by
// side: from slot 0 on, or, packed, from slot starts[s] / block + s on, where every sequence wastes at most one.
struct TileSlots {
  int planes = 0;  // heads of all batch entries; packed: heads
  int slots = 0;   // of a plane
};

// In which order key tiles add to the gradient of a query tile (tiles.cuh). Everything is a power of two: one
// thread computes with it between two adds that others wait for.
struct AddOrder {
  bool ring = false;         // key tiles start at query tiles of their own
  int ring_shift = 0;        // ring: the start of the next key tile is 1 << ring_shift query tiles on
  int lane_shift = 0;        // log2 of the partial sums
  bool parts = false;        // the partial sums are those of a pass of its own (queries.cuh)
  bool rounds = false;       // whoever adds last rounds the sum and stores it; else, and with lanes, `finish` does
  int front = 0;             // so many key tiles walk upwards from the diagonal, and have lanes of their own
  int front_lane_shift = 0;  // log2 of those

  __host__ __device__ int front_lanes() const { return front > 0 ? 1 << front_lane_shift : 0; }
  __host__ __device__ int lanes() const { return front_lanes() + (1 << lane_shift); }
};

struct BackwardParams {
  LogitRule rule;
  int left = 0, right = 0;              // row i sees the keys [position - left, position + right]; causal: right = 0
  DeviceTensor q, k, v, out, grad_out;  // [batch, heads, rows, columns]
  DeviceView<const float, 3> lse;       // [batch, heads, q_len]
  DeviceView<const float, 3> grad_lse;  // what flows into it; null: nothing
  DeviceView<const float, 3> entropy, grad_entropy;  // likewise; given together
  DeviceTensor grad_q, grad_k, grad_v;               // null: not asked for
  float scale_log2 = 1;                              // scale * log2(e)
  Softcap softcap;
  float inverse_cap_log2 = 0;  // 1 / softcap.cap_log2

  // Workspace. Per query tile: what a row adds to its scores, what it takes from the gradient of its weights, the
  // unscaled gradient of q in the order of accumulators, and whose turn it is to add to that.
  TileSlots queries, keys;
  float* negative_lse = nullptr;       // -lse * log2(e); -inf: the row does not exist or sees nothing
  bool alibi_in_rows = false;          // less the slope times the rows from the tile's first one on
  float* delta = nullptr;              // out . grad_out - grad_lse + grad_entropy (entropy + weight of the sink)
  float* grad_entropy_rows = nullptr;  // null: nothing flows into the entropy
  float* grad_q_tiles = nullptr;       // [lanes, query tiles, elements]
  int* turns = nullptr;                // [lanes, query tiles]
  int* suspects = nullptr;             // per key tile, then per query tile: not 0 where a gradient is not finite
  int* ticket = nullptr;               // the next work item

  int items = 0;                 // key slots of all planes
  int heads_together = 1;        // planes walked side by side, so that their tiles stay in L2 and their waits overlap
  int query_heads_together = 1;  // the same for the pass of its own of the gradient of q
  AddOrder order;
};

}  // namespace rootdk::cuda::hopper
