#pragma once

// The work of the blocks that compute the gradient of q in a separate pass (queries.cuh).

#include "cuda/hopper/backward/config.h"

namespace rootdk::cuda::hopper {

// The block's queries, and its part of the key tiles that any of them sees.
struct QueryBlock {
  int entry, head, kv_head;
  int row0;
  int first, tiles;  // key tiles
  int part;          // which part of them
};
// Blocks are ordered by bundles of planes; inside a bundle the last rows come first, because under causal masking they
// see the most keys, and planes vary fastest.
template <class C>
__device__ __forceinline__ QueryBlock query_block(int index, const BackwardParams& p) {
  const LogitRule& rule = p.rule;
  const int blocks = (rule.q_len + kQueriesOfBlock - 1) / kQueriesOfBlock;
  const int parts = p.order.sums(), part = index & (parts - 1), whole = index >> p.order.sum_shift;
  const int bundle = whole / (blocks * p.query_heads_together), first_plane = bundle * p.query_heads_together;
  const int planes = min(p.query_heads_together, p.queries.planes - first_plane);
  const int rest = whole - first_plane * blocks, block = rest / planes;
  const int plane = first_plane + rest - block * planes, entry = plane / rule.heads, head = plane - entry * rule.heads;
  QueryBlock b{entry, head, head / rule.group(), (blocks - 1 - block) * kQueriesOfBlock, 0, 0, part};
  const int shift = rule.kv_len - rule.q_len;
  const int begin = max(0, b.row0 + shift - p.left);
  const int end = min(rule.kv_len, b.row0 + kQueriesOfBlock + shift + p.right);
  const int first = begin / C::kBlockKv, tiles = end <= begin ? 0 : (end + C::kBlockKv - 1) / C::kBlockKv - first;
  b.first = first + ((tiles * part) >> p.order.sum_shift);
  b.tiles = first + ((tiles * (part + 1)) >> p.order.sum_shift) - b.first;
  return b;
}

}  // namespace rootdk::cuda::hopper
