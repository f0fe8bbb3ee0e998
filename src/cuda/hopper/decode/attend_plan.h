#pragma once

// How an attend call is divided: query tiles of up to 64 rows, keys in chunks at fixed positions, and launches whose
// partial results fit into the workspace. Depends on the call alone.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kv_call.h"
#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

struct AttendPlan {
  DecodeKernel kernel;
  std::vector<CacheTile> tiles;
  std::vector<std::int32_t> tables;     // page tables of all sequences, concatenated
  std::vector<std::int32_t> positions;  // of every token; empty without RoPE
  int tile_rows = 0;                    // of the largest tile
  int chunks = 0;                       // of the longest sequence
  bool several_tokens = false;          // of one sequence
  int chunks_together = 1;              // chunks that one block processes
  int tiles_together = 1;               // tiles of one launch
  int box_keys = 0;                     // keys of one copy

  bool merges() const { return chunks > 1 || several_tokens; }  // tokens: see repair.cuh

  // The layout of the workspace: tiles, tables and positions; the rotated queries; the partial results of one launch.
  std::size_t tables_offset = 0, positions_offset = 0, queries_offset = 0, partials_offset = 0, bytes = 0;
};

AttendPlan plan_attend(const AttendCall& call);

}  // namespace rootdk::cuda::hopper
