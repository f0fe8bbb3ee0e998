#pragma once

// How a call over a cache is cut: query tiles of up to 64 rows, keys in chunks that depend on nothing, and launches
// whose partial results fit the workspace. From the call alone.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kv_call.h"
#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

struct AttendPlan {
  DecodeKernel kernel;
  std::vector<CacheTile> tiles;
  std::vector<std::int32_t> tables;     // page tables of all sequences, one after another
  std::vector<std::int32_t> positions;  // of every token: RoPE alone
  int tile_rows = 0;                    // of the largest tile
  int chunks = 0;                       // of the longest sequence
  int chunks_together = 1;              // chunks that one block walks
  int tiles_together = 1;               // tiles of one launch
  int box_keys = 0;                     // keys that one copy brings

  // The workspace: tiles, tables and positions; the rotated queries; the parts of one launch.
  std::size_t tables_offset = 0, positions_offset = 0, queries_offset = 0, partials_offset = 0, bytes = 0;
};

AttendPlan plan_attend(const AttendCall& call);

}  // namespace rootdk::cuda::hopper
