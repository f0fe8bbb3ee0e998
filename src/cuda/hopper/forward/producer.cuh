#pragma once

// The producer of the forward kernel: one thread that takes query tiles and loads q, k and v into shared memory.

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class Producer {
 public:
  __device__ __forceinline__ Producer(SharedStorage<C>& shared, const ForwardMaps& maps, const ForwardParams& params)
      : shared_(shared), maps_(maps), p_(params), dealer_(params) {}

  // With several query stages the next tile is handed over while this tile's keys still load, so that its queries
  // arrive in time: after one key tile with three stages, after two key tiles with two stages, because the previous
  // output must leave that stage first. With one stage the handover waits for the end of this tile. The first pass of
  // the loop only hands over the first tile.
  __device__ __forceinline__ void run() {
    KeyTiles keys{.first = 0, .last = -1};
    int hand_over_at = -1;
    while (true) {
#pragma unroll 1  // unrolled, the loop needs more registers than a producer has
      for (int j = keys.last; j >= keys.first - 1; --j) {
        if (j >= keys.first) load_k(j);
        if (j < keys.last) load_v(j + 1);
        if (j == hand_over_at) hand_over();
      }
      const WorkTile tile = shared_.tile[handed_tile_];
      if (tile.sequence < 0) return;
      dealer_.advance();  // early: the atomic counter takes long to answer
      keys = key_tiles<C>(tile, p_);
      hand_over_at = max(keys.first - 1, keys.last - kHandOverAfter);
      kv_begin_ = tile.kv_begin;
      if constexpr (C::kFp8) first_block_ = p_.q_starts.data ? kv_begin_ / C::kBlockKv + tile.sequence : 0;
      kv_head_ = tile.head / p_.group;
      batch_ = batch_of(tile);
    }
  }

 private:
  static constexpr int kHandOverAfter = C::kQStages > 2 ? 1 : C::kQStages == 2 ? 2 : INT_MAX / 2;  // key tiles

  // Gives the consumers the dealer's next tile and its queries, or the end mark.
  __device__ __forceinline__ void hand_over() {
    WorkTile tile;
    tile.sequence = -1;
    for (; !dealer_.done(); dealer_.advance()) {
      tile = work_tile<C>(dealer_.tile(), p_);
      if (!C::kRanged || tile.q0 < tile.q_len) break;  // a shorter packed sequence has fewer tiles
    }
    if (dealer_.done()) tile.sequence = -1;
    const std::uint32_t full = ptx::shared_address(&shared_.q_full[q_.stage]);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_empty[q_.stage]), q_.parity ^ 1);
    handed_tile_ = tile_ring_.stage;
    shared_.tile[handed_tile_] = tile;
    tile_ring_.advance();
    if (tile.sequence < 0) {
      ptx::mbarrier_arrive(full);
      return;
    }
    // The barrier's expected bytes also publish the tile's description to the consumers.
    if constexpr (!C::kFp8) {
      ptx::mbarrier_expect_bytes(full, C::kQBytes);
    } else {
      constexpr int kColumnBytes = sizeof(shared_.fp8.v_columns[0]), kRowBytes = sizeof(shared_.fp8.q[0]);
      ptx::mbarrier_expect_bytes(full, C::kQBytes + kColumnBytes + kRowBytes);
      ptx::bulk_load(ptx::shared_address(shared_.fp8.q[handed_tile_]), p_.fp8.q + fp8_row(tile, p_) / 2 * 2, kRowBytes,
                     full);
      const std::int64_t plane =
          static_cast<std::int64_t>(tile.sequence) * (p_.heads / p_.group) + tile.head / p_.group;
      ptx::bulk_load(ptx::shared_address(shared_.fp8.v_columns[handed_tile_]),
                     p_.fp8.v_columns + plane * 2 * C::kHeadDim, kColumnBytes, full);
    }
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      ptx::tma_load_4d(ptx::shared_address(shared_.q[q_.stage]) + panel * C::kQPanelBytes, &maps_.q, full,
                       C::kPanelColumns * panel, tile.q_begin + tile.q0, tile.head, batch_of(tile), ptx::kEvictFirst);
    }
    q_.advance();
  }

  __device__ __forceinline__ int batch_of(const WorkTile& tile) const { return p_.q_starts.data ? 0 : tile.sequence; }

  __device__ __forceinline__ void load_k(int j) {
    if constexpr (C::kFp8) {
      const int block = (batch_ * p_.heads / p_.group + kv_head_) * p_.fp8.key_blocks + first_block_ + j;
      const float scale = p_.fp8.k[block];  // asked for before the wait, which hides its latency
      ptx::mbarrier_wait(ptx::shared_address(&shared_.k_empty[k_.stage]), k_.parity ^ 1);
      shared_.fp8.k_scale[k_.stage] = scale;  // published with the barrier's expected bytes
    }
    load(maps_.k, shared_.k[k_.stage], shared_.k_full[k_.stage], shared_.k_empty[k_.stage], k_.parity, j);
    k_.advance();
  }
  __device__ __forceinline__ void load_v(int j) {
    if constexpr (C::kFp8) {
      const std::uint32_t barrier = ptx::shared_address(&shared_.v_full[v_.stage]);
      ptx::mbarrier_wait(ptx::shared_address(&shared_.v_empty[v_.stage]), v_.parity ^ 1);
      ptx::mbarrier_expect_bytes(barrier, C::kVBytes);
#pragma unroll
      for (int panel = 0; panel < C::kBlockKv / C::kVPanelKeys; ++panel) {
        ptx::tma_load_4d(ptx::shared_address(shared_.v[v_.stage]) + panel * C::kHeadDim * C::kVPanelKeys, &maps_.v,
                         barrier, (first_block_ + j) * C::kBlockKv + C::kVPanelKeys * panel, 0, kv_head_, batch_,
                         ptx::kEvictLast);
      }
    } else {
      load(maps_.v, shared_.v[v_.stage], shared_.v_full[v_.stage], shared_.v_empty[v_.stage], v_.parity, j);
    }
    v_.advance();
  }

  __device__ __forceinline__ void load(const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full,
                                       std::uint64_t& empty, std::uint32_t parity, int j) {
    const std::uint32_t barrier = ptx::shared_address(&full);
    ptx::mbarrier_wait(ptx::shared_address(&empty), parity ^ 1);
    ptx::mbarrier_expect_bytes(barrier, C::kKvBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      ptx::tma_load_4d(ptx::shared_address(buffer) + panel * C::kKvPanelBytes, &map, barrier, C::kPanelColumns * panel,
                       kv_begin_ + j * C::kBlockKv, kv_head_, batch_, ptx::kEvictLast);
    }
  }

  SharedStorage<C>& shared_;
  const ForwardMaps& maps_;
  const ForwardParams& p_;
  TileDealer dealer_;
  Ring<C::kQStages> q_;
  Ring<C::kTileBuffers> tile_ring_;
  int handed_tile_ = 0;                         // of the tile handed over last
  int kv_begin_ = 0, kv_head_ = 0, batch_ = 0;  // of the tile whose keys load
  int first_block_ = 0;                         // e4m3: the sequence's first block of keys
  Ring<C::kStages> k_, v_;
};

}  // namespace rootdk::cuda::hopper
