#pragma once

// The loading warp of the backward kernel: draws key tiles and loads tiles into shared memory. One lane issues the
// copies; all lanes clear rows that belong to another sequence.

#include "cuda/hopper/backward/tiles.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class BackwardProducer {
 public:
  __device__ __forceinline__ BackwardProducer(BackwardStorage<C>& shared, const BackwardMaps& maps,
                                              const BackwardParams& params)
      : shared_(shared), maps_(maps), p_(params), lane_(threadIdx.x & 31) {}

  __device__ __forceinline__ void run() {
    while (true) {
      const KeyTile tile = hand_over();
      if (tile.sequence < 0) return;
      if (tile.tiles == 0) continue;
      const int entry = entry_of(tile, p_);
      int head = tile.kv_head * p_.rule.group();
      int first_tile = first_query_tile<C>(p_, tile.sequence, head, tile.q_begin);
      QueryWalk walk(tile);
      load_queries(tile, entry, head, walk.tile(), first_tile);
      load_v(tile, entry);
#pragma unroll 1  // unrolled, the loop would need more registers than this warp has
      for (int steps = tile.tiles * p_.rule.group() - 1; steps > 0; --steps) {
        if (walk.advance()) {
          ++head;
          first_tile += p_.queries.tiles;
        }
        load_queries(tile, entry, head, walk.tile(), first_tile);
      }
    }
  }

 private:
  // Draws the next work item and passes it to all warps with its keys. It is drawn as late as possible, so that items
  // start in the order in which they are drawn: a block that waits for an earlier item waits for one that runs.
  __device__ __forceinline__ KeyTile hand_over() {
    KeyTile tile;
    while (true) {
      int item = 0;
      if (lane_ == 0) item = atomicAdd(p_.ticket, 1);
      item = __shfl_sync(0xffffffffu, item, 0);
      tile.sequence = -1;
      if (item >= p_.items) break;
      tile = work_item<C>(item, p_);
      if (tile.key0 < tile.kv_len) break;  // otherwise an unused tile number
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_empty[k_.stage]), k_.parity ^ 1);
    if (lane_ == 0) write_key_tile(ptx::shared_address(&shared_.tile[k_.stage]), tile);
    if (tile.sequence < 0 || tile.tiles == 0) {
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_full[k_.stage]));
    } else {
      load<C::kBlockKv>(maps_.k, shared_.k[k_.stage], shared_.k_full[k_.stage], 0, key_box(tile, entry_of(tile, p_)));
    }
    k_.advance();
    return tile;
  }

  static constexpr std::uint32_t kRowBytes = C::kBlockQ * sizeof(float);

  struct Box {
    int row, head, entry;
    int kept;  // rows from here on belong to another sequence: they become zeros
    std::uint64_t l2_hint;
  };
  // Without lengths and packing, the copy engine itself fills rows past the end with zeros.
  __device__ __forceinline__ Box key_box(const KeyTile& tile, int entry) const {
    const int kept = p_.rule.kv_lengths || p_.rule.q_starts ? tile.kv_visible - tile.key0 : C::kBlockKv;
    return {tile.kv_begin + tile.key0, tile.kv_head, entry, kept, ptx::kEvictFirst};
  }

  __device__ __forceinline__ void load_v(const KeyTile& tile, int entry) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_empty), v_.parity ^ 1);
    load<C::kBlockKv>(maps_.v, shared_.v, shared_.v_full, 0, key_box(tile, entry));
    v_.advance();
  }

  __device__ __forceinline__ void load_queries(const KeyTile& tile, int entry, int head, int i, int first_tile) {
    const int row0 = i * C::kBlockQ, stage = q_.stage;
    const std::int64_t first = static_cast<std::int64_t>(first_tile + i) * C::kBlockQ;
    const int kept = p_.rule.q_starts ? tile.q_len - row0 : C::kBlockQ;
    const Box box{tile.q_begin + row0, head, entry, kept, ptx::kEvictLast};
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_empty[stage]), q_.parity ^ 1);
    load<C::kBlockQ>(maps_.q, shared_.q[stage], shared_.q_full[stage], kRowBytes, box);
    if (lane_ == 0) {
      ptx::bulk_load(ptx::shared_address(shared_.negative_lse[stage]), p_.negative_lse + first, kRowBytes,
                     ptx::shared_address(&shared_.q_full[stage]));
    }
    q_.advance();
    load_grad_out(box, first);
  }

  // Also loads the terms of the rows, from index `first_row` on.
  __device__ __forceinline__ void load_grad_out(const Box& box, std::int64_t first_row) {
    const int stage = grad_out_.stage;
    const std::uint32_t full = ptx::shared_address(&shared_.grad_out_full[stage]);
    bool has_entropy = false;
    if constexpr (C::kVariant == BackwardVariant::rich) has_entropy = static_cast<bool>(p_.grad_entropy);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_out_empty[stage]), grad_out_.parity ^ 1);
    load<C::kBlockQ>(maps_.grad_out, shared_.grad_out[stage], shared_.grad_out_full[stage],
                     has_entropy ? 2 * kRowBytes : kRowBytes, box);
    if (lane_ == 0) {
      ptx::bulk_load(ptx::shared_address(shared_.delta[stage]), p_.delta + first_row, kRowBytes, full);
      if constexpr (C::kVariant == BackwardVariant::rich) {
        if (has_entropy) {
          ptx::bulk_load(ptx::shared_address(shared_.exchange.grad_entropy[stage]), p_.grad_entropy_rows + first_row,
                         kRowBytes, full);
        }
      }
    }
    grad_out_.advance();
  }

  // Loads one tile with all columns; announces `more` bytes for the copies that follow.
  template <int Rows>
  __device__ __forceinline__ void load(const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full,
                                       std::uint32_t more, const Box& box) {
    constexpr int kPanelBytes = Rows * 128;
    const bool clears = box.kept < Rows;
    const std::uint32_t ready = ptx::shared_address(&full);
    const std::uint32_t barrier = clears ? ptx::shared_address(&shared_.landed) : ready;
    if (lane_ == 0) {
      ptx::mbarrier_expect_bytes(barrier, C::kPanels * kPanelBytes + (clears ? 0 : more));
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        ptx::tma_load_4d(ptx::shared_address(buffer) + panel * kPanelBytes, &map, barrier, 64 * panel, box.row,
                         box.head, box.entry, box.l2_hint);
      }
    }
    if (clears) {
      ptx::mbarrier_wait(barrier, landed_.parity);
      landed_.advance();
      clear_rows<Rows>(buffer, box.kept);
      if (lane_ == 0) ptx::mbarrier_expect_bytes(ready, more);
    }
  }

  template <int Rows>
  __device__ __forceinline__ void clear_rows(std::uint8_t* buffer, int kept) {
#pragma unroll 1
    for (int panel = 0; panel < C::kPanels; ++panel) {
      const std::uint32_t start = ptx::shared_address(buffer) + panel * Rows * 128;
#pragma unroll 1
      for (int vector = 8 * kept + lane_; vector < 8 * Rows; vector += 32) {
        ptx::store_shared(start + 16 * vector, make_int4(0, 0, 0, 0));
      }
    }
    ptx::fence_async_shared();
    __syncwarp();
  }

  BackwardStorage<C>& shared_;
  const BackwardMaps& maps_;
  const BackwardParams& p_;
  const int lane_;
  Ring<C::kKeyStages> k_;
  Ring<1> v_, landed_;
  Ring<C::kStages> q_;
  Ring<C::kGradOutStages> grad_out_;
};

}  // namespace rootdk::cuda::hopper
