#pragma once

// The producer warps of decode: load key and value tiles into shared memory.

#include "cuda/hopper/decode/part.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

// Keys and values in a tensor: a tile is one box. Called by one thread.
template <class C>
__device__ __forceinline__ void load_tensor(DecodeStorage<C>& shared, const ForwardMaps& maps, const ForwardParams& p,
                                            const DecodePart& part) {
  Ring<C::kStages> ring;
  const auto load = [&](const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full, std::uint64_t& empty,
                        int j) {
    const std::uint32_t barrier = ptx::shared_address(&full);
    ptx::mbarrier_wait(ptx::shared_address(&empty), ring.parity ^ 1);
    ptx::mbarrier_expect_bytes(barrier, C::kKvBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      ptx::tma_load_4d(ptx::shared_address(buffer) + panel * C::kKvPanelBytes, &map, barrier, 64 * panel,
                       j * C::kBlockKv, part.kv_head, part.batch, ptx::kEvictFirst);
    }
  };
  const auto nothing = [](int) {};
  walk_parts<C>(
      part, p, nothing,
      [&](int j) {
        load(maps.k, shared.k[ring.stage], shared.k_full[ring.stage], shared.k_empty[ring.stage], j);
        load(maps.v, shared.v[ring.stage], shared.v_full[ring.stage], shared.v_empty[ring.stage], j);
        ring.advance();
      },
      nothing);
}

// The pages of a chunk, spread over a warp: lane l holds the page of keys [16 l, 16 l + 16) of the chunk, and where in
// it they begin. The pages of the next chunk are loaded while this one is processed.
class ChunkPages {
 public:
  __device__ __forceinline__ ChunkPages(const DecodePart& part, const CacheKeys& cache) : part_(part), cache_(cache) {
    next_ = read(part.first_part);
  }
  __device__ __forceinline__ void begin(int chunk) {
    here_ = next_;
    next_ = read(chunk + 1);
  }
  // This lane's page; -1: evicted, or past the end of the sequence.
  __device__ __forceinline__ int own() const { return here_.page; }
  // The row of the page at which this lane's keys begin.
  __device__ __forceinline__ int own_row() const { return here_.row; }
  // The page of a key of the chunk, and the key's row in it. All lanes call it together.
  __device__ __forceinline__ int of(int key) const {
    return __shfl_sync(0xffffffffu, here_.page, key % kChunkKeys / kKeysPerLane);
  }
  __device__ __forceinline__ int row_of(int key) const {
    return __shfl_sync(0xffffffffu, here_.row, key % kChunkKeys / kKeysPerLane) + key % kKeysPerLane;
  }

 private:
  struct Place {
    int page = -1, row = 0;
  };
  __device__ __forceinline__ Place read(int chunk) const {
    const int key = chunk * kChunkKeys + kKeysPerLane * static_cast<int>(threadIdx.x & 31);
    if (key >= part_.keys) return {};
    const int index = key / cache_.page_size;
    return {cache_.tables[part_.table + index], key - index * cache_.page_size};
  }

  const DecodePart& part_;
  const CacheKeys& cache_;
  Place here_, next_;
};

// The layout of a cache's tile in shared memory: panels of `columns` columns, each stored row by row.
struct PanelLayout {
  int panels, columns, row_bytes;
};

// Keys or values in pages: a tile is several boxes, and each lane loads the box that begins at its 16 keys. A page of
// -1 lies outside the tensor, so zeros arrive. Called by one warp.
template <class C, PanelLayout Layout>
__device__ __forceinline__ void load_boxes(const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full,
                                           const CacheKeys& cache, const ChunkPages& chunk, int kv_head, int j) {
  const int key = static_cast<int>(threadIdx.x & 31) * kKeysPerLane;  // inside the chunk, like `first`
  const int first = j * C::kBlockKv % kChunkKeys;
  // box_keys divides the tile, so it is a power of two.
  if (key < first || key >= first + C::kBlockKv || (key & (cache.box_keys - 1)) != 0) return;
#pragma unroll
  for (int panel = 0; panel < Layout.panels; ++panel) {
    const int row = panel * C::kBlockKv + key - first;
    ptx::tma_load_4d(ptx::shared_address(buffer) + row * Layout.row_bytes, &map, ptx::shared_address(&full),
                     Layout.columns * panel, chunk.own_row(), kv_head, chunk.own(), ptx::kEvictFirst);
  }
}

// Waits until a buffer is free, then announces how many bytes will arrive. Called by one warp.
__device__ __forceinline__ void announce(std::uint64_t& full, std::uint64_t& empty, std::uint32_t parity, int bytes) {
  ptx::mbarrier_wait(ptx::shared_address(&empty), parity ^ 1);
  if ((threadIdx.x & 31) == 0) ptx::mbarrier_expect_bytes(ptx::shared_address(&full), bytes);
  __syncwarp();
}

// The first producer warp loads keys, the second values: a warp takes longer to issue the copies of small pages than
// memory takes to serve them.
template <class C>
__device__ __forceinline__ void load_pages(DecodeStorage<C>& shared, const ForwardMaps& maps, const ForwardParams& p,
                                           const CacheKeys& cache, const DecodePart& part) {
  const bool keys = threadIdx.x < C::kConsumerThreads + 32;
  const CUtensorMap& map = keys ? maps.k : maps.v;
  Ring<C::kStages> ring;
  ChunkPages chunk(part, cache);
  walk_parts<C>(
      part, p, [&](int index) { chunk.begin(index); },
      [&](int j) {
        std::uint64_t& full = keys ? shared.k_full[ring.stage] : shared.v_full[ring.stage];
        std::uint64_t& empty = keys ? shared.k_empty[ring.stage] : shared.v_empty[ring.stage];
        announce(full, empty, ring.parity, C::kKvBytes);
        load_boxes<C, PanelLayout{.panels = C::kPanels, .columns = 64, .row_bytes = 128}>(
            map, keys ? shared.k[ring.stage] : shared.v[ring.stage], full, cache, chunk, part.kv_head, j);
        ring.advance();
      },
      [](int) {});
}

}  // namespace rootdk::cuda::hopper
