#pragma once

// The rows of a decode tile: pairs of a query and a head of one group; heads vary fastest.

#include "cuda/hopper/decode/part.cuh"
#include "cuda/hopper/shared/logit_terms.cuh"

namespace rootdk::cuda::hopper {

struct QueryHead {
  int query, head;  // query: counted from the tile's first
};
__device__ __forceinline__ QueryHead row_in(const DecodePart& part, const ForwardParams& p, int row) {
  const int pair = part.first_head + row;
  return {.query = pair / p.group, .head = part.kv_head * p.group + pair % p.group};
}

template <class Element>
__device__ __forceinline__ const Element* query_row(const ForwardParams& p, const DecodePart& part, QueryHead at) {
  return static_cast<const Element*>(p.q.data) + part.batch * p.q.batch_stride + at.head * p.q.head_stride +
         (part.row + at.query) * p.q.row_stride;
}

// The two rows that a thread holds in an accumulator layout: a row, and the one `step` rows below. Rows past the end
// repeat the last one and are not stored.
struct ThreadRows {
  __device__ __forceinline__ ThreadRows(const DecodePart& part, const ForwardParams& p, int first, int step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = first + step * r;
      at[r] = row_in(part, p, min(row[r], part.rows - 1));
    }
  }
  __device__ __forceinline__ bool exists(const DecodePart& part, int r) const { return row[r] < part.rows; }

  // A tile of scores whose first column, for this thread, is the key `column`.
  __device__ __forceinline__ TileCoordinates coordinates(const DecodePart& part, const ForwardParams& p,
                                                         int column) const {
    return {.sequence = part.batch,
            .head = {at[0].head, at[1].head},
            .row = {at[0].query, at[1].query},
            .position = {part.position + at[0].query, part.position + at[1].query},
            .column = column,
            .q_len = p.q_len,
            .kv_len = p.kv_len};
  }

  int row[2];
  QueryHead at[2];
};

// Sets scores to -inf where the row does not see the key; the tile's keys are [first_key, first_key + keys).
template <class Scores>
__device__ __forceinline__ void mask_unseen(Scores& s, const DecodePart& part, const ForwardParams& p,
                                            const TileCoordinates& tile, int first_key, int keys) {
  if (all_see(part, p, first_key, first_key + keys)) return;
  for_each_score(s, [&](float& x, int r, int offset) {
    if (!keeps(part, p, tile.position[r], tile.column + offset)) x = -INFINITY;
  });
}

}  // namespace rootdk::cuda::hopper
