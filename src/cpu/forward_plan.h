#pragma once

// How a forward call is cut: blocks of rows, tiles of keys, and what is packed at a time. The cuts of a row depend on
// its own sequence alone, never on threads, batch or memory, so neither do its bits.

#include <cstddef>
#include <cstdint>

#include "core/attention_call.h"
#include "cpu/kernel_table.h"

namespace rootdk::cpu {

// No target has smaller blocks of rows. What is summed block by block (column_mass) goes by so many rows, so that its
// bits do not depend on how large blocks are for a number of threads.
constexpr int kFewestBlockRows = 96;

// The rows of one sequence and key head: row r is query r / group of head (r % group) of the group, so that the
// rows of heads which share keys are adjacent.
struct RowBlocks {
  std::int64_t rows = 0;
  std::int64_t block_rows = 1;

  RowBlocks() = default;
  RowBlocks(std::int64_t row_count, const Geometry& geometry);
  std::int64_t count() const { return (rows + block_rows - 1) / block_rows; }
};

// Sizes of packed operands and of a thread's working memory, in bytes.
struct ForwardSizes {
  Geometry geometry;
  std::int64_t depth = 0;          // head_dim padded
  std::int64_t value_columns = 0;  // value_dim in whole panels
  std::size_t tile_bytes = 0;      // keys and values of one tile
  std::size_t worker_bytes = 0;    // of one thread: kernel scratch, packed q, rows, state
  std::size_t state_bytes = 0;     // of one row between two rounds over its keys
  std::size_t row_bytes = 0;       // of one row until the second pass
};

struct ForwardPlan {
  ForwardSizes sizes;
  std::int64_t batch_heads = 0;  // sequences x kv_heads
  std::int64_t tiles = 0;        // of the longest sequence
  std::int64_t rows = 0;         // of the longest sequence: q_len x group
  std::int64_t segments = 0;     // of the pooled map: runs of keys inside a cell and a tile
  bool second_pass = false;      // column_mass or weights
  int workers = 1;               // threads that work at once
  std::int64_t round_heads = 1;  // batch heads packed at once
  bool head_tasks = false;       // short sequences: a task packs a batch head and attends to it, in the worker's memory
  std::int64_t round_tiles = 0;  // of a batch head packed at once
  std::int64_t round_rows = 0;   // of a batch head computed at once, where not all tiles are packed
  bool whole() const { return round_tiles >= tiles; }

  std::size_t bytes() const;
};

ForwardPlan plan_forward(const ForwardCall& call, const KernelTable& kernels, int threads);

}  // namespace rootdk::cpu
