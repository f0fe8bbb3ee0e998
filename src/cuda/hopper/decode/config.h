#pragma once

// Decode: few queries against many keys. One description for host and device.

#include <cstdint>

#include "cuda/hopper/shared/tile_config.h"

namespace rootdk::cuda::hopper {

// Where keys and values come from.
enum class KeySource : std::int32_t {
  tensor,  // [batch, kv_heads, kv_len, dim]
  cache,   // pages of a cache, of the queries' type, through a table for each sequence
};

// All query rows that share a key head, at most 64, form one tile. The work is bound by memory: what counts is bytes in
// flight, so that shared memory is a ring of key and value tiles, and smaller heads run two blocks a multiprocessor.
template <class Element_, int HeadDim, KeySource Source>
struct DecodeConfig {
  using Element = Element_;
  static constexpr KeySource kSource = Source;
  static constexpr bool kCached = Source != KeySource::tensor;

  static constexpr Tuning kTuning{.early_token = 0};
  static constexpr bool kRanged = true;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kBlockQ = 64;
  static constexpr int kBlockKv = 64;
  static constexpr int kBlocksPerMultiprocessor = HeadDim <= 128 ? 2 : 1;

  static constexpr int kStages = HeadDim == 64 ? 6 : HeadDim == 192 ? 4 : 3;

  // Four consumer warps and the producer.
  static constexpr int kConsumerThreads = 128;
  static constexpr int kThreads = kConsumerThreads + 32;

  static constexpr int kPanels = (HeadDim + 63) / 64;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
};

// The rows of one query tile and one key head against parts [first_part, last_part) of the keys.
struct DecodePart {
  int batch;  // of q, out and the statistics
  int row;    // of the first query in them
  int tile, kv_head;
  int rows;        // of the tile: pairs of a query and a head, heads first
  int first_head;  // of the group, of the first row
  int tokens;      // queries of the tile
  int position;    // of the first
  int keys;        // how many exist
  int keeps_first;
  int evicted_begin, evicted_end;
  int table;
  int first_part, last_part;
  int part_tiles;  // key tiles of a part
};

template <class C>
struct DecodeStorage {
  alignas(kSharedAlignment) std::uint8_t q[C::kQBytes];
  alignas(kSharedAlignment) std::uint8_t k[C::kStages][C::kKvBytes];
  alignas(kSharedAlignment) std::uint8_t v[C::kStages][C::kKvBytes];
  std::uint64_t k_full[C::kStages], k_empty[C::kStages];
  std::uint64_t v_full[C::kStages], v_empty[C::kStages];
  DecodePart part;  // here, not in registers, which the consumers need
};

inline constexpr int kDecodeRows = 64;           // of a tile: queries times the heads of a group
inline constexpr int kDecodeMergeThreads = 256;  // a block for each row

// A cache's keys are cut at multiples of so many, whatever the call, and the parts are merged in order: the bits of a
// row depend on nothing but its sequence. 32 pieces of 16 keys, the smallest page: a warp holds a chunk's pages.
inline constexpr int kChunkKeys = 512, kKeysPerLane = 16;

// A query tile over pages: rows of one sequence, pairs of a token and a head of the group, heads first.
struct CacheTile {
  int row = 0;         // of q and out, of the first token
  int rows = 0;        // of the tile
  int first_head = 0;  // of the group, of the first row
  int position = 0;    // of the first token
  int evicted_begin = 0, evicted_end = 0;
  int table = 0;  // where the sequence's page table begins
  int unused = 0;
};

// The cache of a call; nothing for a tensor.
struct CacheKeys {
  const CacheTile* tiles = nullptr;
  const std::int32_t* tables = nullptr;  // logical page -> page; -1: evicted
  int page_size = 0;
  int box_keys = 0;         // keys that one copy brings: divides both page and tile
  int keeps_first = 0;      // keys that the window never hides
  int chunks_together = 1;  // chunks that one block walks
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;  // [pages, kv_heads, page_size]
};

struct DecodeKernel {
  const void* function = nullptr;  // void(ForwardMaps, ForwardParams, CacheKeys)
  const void* merge = nullptr;     // void(ForwardParams, CacheKeys)
  int head_dim = 0, block_kv = 0;
  int rows = 0;  // of a query tile
  int blocks_per_multiprocessor = 0;
  int threads = 0;
  int shared_bytes = 0;
};

}  // namespace rootdk::cuda::hopper
