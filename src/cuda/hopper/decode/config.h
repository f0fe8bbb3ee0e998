#pragma once

// Decode: few queries against many keys. Constants and structs that host and device share.

#include <cstdint>

#include "cuda/hopper/shared/tile_config.h"

namespace rootdk::cuda::hopper {

// Where keys and values come from.
enum class KeySource : std::int32_t {
  tensor,  // [batch, kv_heads, kv_len, dim]
  cache,   // pages of a cache, of the queries' type, through a table for each sequence
};

inline constexpr int kTensorTileKeys = 64;  // of a key tile

// All query rows that share a key head, at most 64, form one tile. Decode is bound by memory bandwidth, so what counts
// is bytes in flight: shared memory is a ring of key and value tiles, and small heads run two blocks per
// multiprocessor.
template <class Element_, int HeadDim, KeySource Source>
struct DecodeConfig {
  using Element = Element_;
  static constexpr KeySource kSource = Source;
  static constexpr bool kCached = Source != KeySource::tensor;

  static constexpr Tuning kTuning{.early_token = 0};
  static constexpr bool kRanged = true;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kBlockQ = 64;
  static constexpr int kBlockKv = kTensorTileKeys;
  static constexpr int kBlocksPerMultiprocessor = HeadDim <= 128 ? 2 : 1;

  static constexpr int kStages = HeadDim == 64 ? 6 : HeadDim == 192 ? 4 : 3;

  // Four consumer warps and the producers: two over a cache, whose tiles are many copies.
  static constexpr int kConsumerThreads = 128;
  static constexpr int kProducerWarps = kCached ? 2 : 1;
  static constexpr int kThreads = kConsumerThreads + 32 * kProducerWarps;

  static constexpr int kPanels = (HeadDim + 63) / 64;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
};

// The work of one block: the rows of one query tile and one key head against parts [first_part, last_part) of the keys.
struct DecodePart {
  int batch;  // of q, out and the statistics
  int row;    // of the first query in them
  int tile, kv_head;
  int rows;        // of the tile: pairs of a query and a head; heads vary fastest
  int first_head;  // the head of the first row, inside the group
  int tokens;      // queries of the tile
  int position;    // of the first query
  int keys;        // how many exist, the last query's included
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
  DecodePart part;  // here, to save registers of the consumers
};

inline constexpr int kDecodeRows = 64;           // of a tile: queries times the heads of a group
inline constexpr int kDecodeMergeThreads = 256;  // one block per row

// The keys of a cache are cut into chunks at fixed positions, whatever the call, and the chunks are merged in order:
// the bits of a row depend on its sequence alone. A chunk is 32 lanes times 16 keys, the smallest page: each lane of a
// warp holds the page of 16 keys.
inline constexpr int kChunkKeys = 512, kKeysPerLane = 16;

// A query tile of an attend call: rows of one sequence, pairs of a token and a head of the group; heads vary fastest.
struct CacheTile {
  int row = 0;         // of q and out, of the first token
  int rows = 0;        // of the tile
  int first_head = 0;  // the head of the first row, inside the group
  int position = 0;    // of the first token
  int evicted_begin = 0, evicted_end = 0;
  int table = 0;  // where the sequence's page table begins
  int unused = 0;
};

// What keys and values are stored as: the queries' type, or bytes with a scale for each row.
enum class Stored : std::int32_t { element, int8, e4m3 };

// The cache of an attend call; empty if keys and values are tensors.
struct CacheKeys {
  const CacheTile* tiles = nullptr;
  const std::int32_t* tables = nullptr;  // logical page -> page; -1: evicted
  int page_size = 0;
  int box_keys = 0;         // keys of one copy: divides both page and tile
  int keeps_first = 0;      // first keys, which the window never hides
  int chunks_together = 1;  // chunks that one block processes
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;  // [pages, kv_heads, page_size]
  Stored stored = Stored::element;
};

struct DecodeKernel {
  const void* function = nullptr;  // void(ForwardMaps, ForwardParams, CacheKeys)
  const void* merge = nullptr;     // void(ForwardParams, CacheKeys)
  const void* merge_and_repair = nullptr;
  int head_dim = 0, block_kv = 0;
  int rows = 0;  // of a query tile
  int blocks_per_multiprocessor = 0;
  int threads = 0;
  int shared_bytes = 0;
};

}  // namespace rootdk::cuda::hopper
