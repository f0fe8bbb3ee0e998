#pragma once

// How a backward call is cut: blocks of queries against blocks of keys, and what is in memory at a time. The cuts, and
// the order in which anything is summed, depend on the sequence alone, never on threads, batch or memory.

#include <cstddef>
#include <cstdint>

#include "core/attention_call.h"
#include "cpu/backward_table.h"

namespace rootdk::cpu {

// The rows of one sequence and key head, in blocks: row r is query r / group of head (r % group) of the group.
struct QueryBlocks {
  std::int64_t rows = 0;
  std::int64_t block_rows = 1;

  QueryBlocks(std::int64_t row_count, int register_rows);
  std::int64_t count() const { return (rows + block_rows - 1) / block_rows; }
};

// Sizes of packed operands, gradients and working memory; bytes unless said otherwise.
struct BackwardSizes {
  BackwardGeometry geometry;
  std::int64_t depth = 0, value_depth = 0;           // head_dim and value_dim padded, as left operands
  std::int64_t head_columns = 0, value_columns = 0;  // in whole panels
  std::int64_t query_rows = 0;                       // kBackwardRows in whole panels
  std::int64_t relative_entries = 0, additive_columns = 0, group = 0;
  std::size_t k = 0, k_rows = 0, v = 0;  // packed operands of a block of keys
  std::size_t grad_k = 0, grad_v = 0;    // f32 gradients of a block of keys
  std::size_t key_block = 0;             // all of these with the flag of the block
  std::size_t parameters = 0;            // sums of a batch head for slopes, sinks, tables
  std::size_t worker = 0;                // of one thread, without a block of keys
  std::size_t bias = 0, additive = 0;    // of the call: f32 gradient of a 16-bit bias; padded additive_v
};

struct BackwardPlan {
  BackwardSizes sizes;
  std::int64_t batch_heads = 0;  // sequences x kv_heads
  std::int64_t row_blocks = 0;   // of the longest sequence
  std::int64_t key_blocks = 0;   // of the longest sequence
  int workers = 1;               // threads that work at once
  std::int64_t round_heads = 1;  // in memory at once
  // All batch heads add to the same bias gradient: they follow each other block by block.
  bool chained = false;
  // Under a tight limit: once over the blocks of keys for dk and dv, once over those of queries for dq, each thread
  // packing what it needs when it needs it. Seven products instead of five, the same bits.
  bool two_sweeps = false;

  std::size_t bytes() const;
};

BackwardPlan plan_backward(const BackwardCall& call, const BackwardTable& kernels, int threads);

}  // namespace rootdk::cpu
