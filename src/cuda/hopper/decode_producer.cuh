#pragma once

// What fills shared memory in decode: one warp that brings tiles, and for int8 pages three that convert them.

#include "cuda/hopper/decode_part.cuh"
#include "cuda/hopper/ring.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

// From a contiguous tensor a tile is a box. One thread.
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

// The pages of a chunk, spread over a warp: lane l has the page of the chunk's piece l. The next chunk's are on their
// way while this one is at work.
class ChunkPages {
 public:
  __device__ __forceinline__ ChunkPages(const DecodePart& part, const PagedKeys& pages) : part_(part), pages_(pages) {
    next_ = read(part.first_part);
  }
  __device__ __forceinline__ void begin(int chunk) {
    page_ = next_;
    next_ = read(chunk + 1);
  }
  // Of this lane; -1: evicted, or past the end of the sequence.
  __device__ __forceinline__ int own() const { return page_; }
  // Of any key of the chunk; all lanes ask together.
  __device__ __forceinline__ int of(int key) const {
    return __shfl_sync(0xffffffffu, page_, key % kChunkKeys / kPieceKeys);
  }

 private:
  __device__ __forceinline__ int read(int chunk) const {
    const int key = chunk * kChunkKeys + kPieceKeys * static_cast<int>(threadIdx.x & 31);
    return key < part_.keys ? pages_.tables[part_.table + key / pages_.page_size] : -1;
  }

  const DecodePart& part_;
  const PagedKeys& pages_;
  int page_ = -1, next_ = -1;
};

// From pages a tile is several boxes: each lane brings the one that begins at its piece. A page of -1 lies outside the
// tensor, and zeros arrive. One warp.
template <class C>
__device__ __forceinline__ void load_pages(StorageOf<C>& shared, const ForwardMaps& maps, const ForwardParams& p,
                                           const PagedKeys& pages, const DecodePart& part) {
  Ring<C::kInt8 ? C::kRawStages : C::kStages> ring;
  ChunkPages chunk(part, pages);
  const int lane = threadIdx.x & 31;
  const auto announce = [&](std::uint64_t& full, std::uint64_t& empty, int bytes) {
    ptx::mbarrier_wait(ptx::shared_address(&empty), ring.parity ^ 1);
    if (lane == 0) ptx::mbarrier_expect_bytes(ptx::shared_address(&full), bytes);
    __syncwarp();
  };
  const auto load = [&](const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full, int j) {
    constexpr int kRowBytes = C::kInt8 ? C::kHeadDim : 128, kColumns = C::kInt8 ? C::kHeadDim : 64;
    const int key = lane * kPieceKeys, first = j * C::kBlockKv % kChunkKeys;  // inside the chunk
    if (key < first || key >= first + C::kBlockKv || key % pages.box_keys != 0) return;
#pragma unroll
    for (int panel = 0; panel < (C::kInt8 ? 1 : C::kPanels); ++panel) {
      ptx::tma_load_4d(ptx::shared_address(buffer) + panel * C::kKvPanelBytes + (key - first) * kRowBytes, &map,
                       ptx::shared_address(&full), kColumns * panel, (j * C::kBlockKv + key - first) % pages.page_size,
                       part.kv_head, chunk.own(), ptx::kEvictFirst);
    }
  };
  walk_parts<C>(
      part, p, [&](int index) { chunk.begin(index); },
      [&](int j) {
        if constexpr (C::kInt8) {
          announce(shared.raw_full[ring.stage], shared.raw_empty[ring.stage], 2 * C::kRawBytes);
          load(maps.k, shared.raw_k[ring.stage], shared.raw_full[ring.stage], j);
          load(maps.v, shared.raw_v[ring.stage], shared.raw_full[ring.stage], j);
        } else {
          announce(shared.k_full[ring.stage], shared.k_empty[ring.stage], C::kKvBytes);
          load(maps.k, shared.k[ring.stage], shared.k_full[ring.stage], j);
          announce(shared.v_full[ring.stage], shared.v_empty[ring.stage], C::kKvBytes);
          load(maps.v, shared.v[ring.stage], shared.v_full[ring.stage], j);
        }
        ring.advance();
      },
      [](int) {});
}

// Four signed bytes to four 16-bit numbers, exactly. f16: 1024 + (byte + 128), whose last bits are the byte, less 1152.
// bf16 has seven such bits only: 128 + the low seven, less 128, or less 256 where the sign is set.
template <class Element>
__device__ __forceinline__ uint2 from_int8(std::uint32_t bytes);
template <>
__device__ __forceinline__ uint2 from_int8<__half>(std::uint32_t bytes) {
  constexpr std::uint32_t kOne = 0x3C003C00, kMinus1152 = 0xE480E480, kExponent = 0x64646464;
  bytes ^= 0x80808080;
  return make_uint2(ptx::fma_pair<__half>(__byte_perm(bytes, kExponent, 0x4140), kOne, kMinus1152),
                    ptx::fma_pair<__half>(__byte_perm(bytes, kExponent, 0x4342), kOne, kMinus1152));
}
template <>
__device__ __forceinline__ uint2 from_int8<__nv_bfloat16>(std::uint32_t bytes) {
  constexpr std::uint32_t kMinusOne = 0xBF80BF80, kExponent = 0x43434343;
  const std::uint32_t low = bytes & 0x7f7f7f7f, sign = bytes & 0x80808080;
  return make_uint2(ptx::fma_pair<__nv_bfloat16>(__byte_perm(sign, kExponent, 0x4140), kMinusOne,
                                                 __byte_perm(low, kExponent, 0x4140)),
                    ptx::fma_pair<__nv_bfloat16>(__byte_perm(sign, kExponent, 0x4342), kMinusOne,
                                                 __byte_perm(low, kExponent, 0x4342)));
}

// Turns int8 tiles into 16-bit tiles in the layout of the products. Integers stay integers: the scales go beside them,
// and meet the scores and the weights in f32.
template <class C>
class Converter {
 public:
  __device__ __forceinline__ Converter(Int8Storage<C>& shared, const ForwardParams& p, const PagedKeys& pages,
                                       const DecodePart& part)
      : shared_(shared), p_(p), pages_(pages), part_(part), chunk_(part, pages) {
    thread_ = static_cast<int>(threadIdx.x) - C::kConsumerThreads - 32;
  }

  __device__ __forceinline__ void run() {
    walk_parts<C>(
        part_, p_, [&](int index) { chunk_.begin(index); }, [&](int j) { convert(j); }, [](int) {});
  }

 private:
  static constexpr int kScales = 2 * C::kBlockKv;  // of keys, then of values
  static constexpr int kScalesAThread = (kScales + C::kConverterThreads - 1) / C::kConverterThreads;

  __device__ __forceinline__ void convert(int j) {
    constexpr int kChunkTiles = kChunkKeys / C::kBlockKv;
    if (scales_of_ != j) read_scales(j, next_scales_);
    float scales[kScalesAThread];
#pragma unroll
    for (int i = 0; i < kScalesAThread; ++i) scales[i] = next_scales_[i];
    if ((j + 1) % kChunkTiles != 0) read_scales(j + 1, next_scales_), scales_of_ = j + 1;  // they take their time
    DecodeStorage<C>& tiles = shared_.tiles;
    ptx::mbarrier_wait(ptx::shared_address(&shared_.raw_full[raw_.stage]), raw_.parity);
    ptx::mbarrier_wait(ptx::shared_address(&tiles.k_empty[ring_.stage]), ring_.parity ^ 1);
    convert_tile<typename C::Element>(shared_.raw_k[raw_.stage], tiles.k[ring_.stage]);
    store_scales(scales, shared_.k_scales[ring_.stage], 0);
    give(tiles.k_full[ring_.stage]);
    ptx::mbarrier_wait(ptx::shared_address(&tiles.v_empty[ring_.stage]), ring_.parity ^ 1);
    convert_tile<typename C::ValueElement>(shared_.raw_v[raw_.stage], tiles.v[ring_.stage]);
    store_scales(scales, shared_.v_scales[ring_.stage], C::kBlockKv);
    give(tiles.v_full[ring_.stage]);
    give(shared_.raw_empty[raw_.stage]);
    raw_.advance();
    ring_.advance();
  }

  // Past the end of the sequence memory may hold anything, and there is no page: the scale is 0.
  __device__ __forceinline__ void read_scales(int j, float (&scales)[kScalesAThread]) const {
#pragma unroll
    for (int i = 0; i < kScalesAThread; ++i) {
      const int index = thread_ + i * C::kConverterThreads, key = j * C::kBlockKv + index % C::kBlockKv;
      const int page = chunk_.of(key);
      const float* from = index < C::kBlockKv ? pages_.k_scales : pages_.v_scales;
      const std::int64_t row =
          (static_cast<std::int64_t>(page) * (p_.heads / p_.group) + part_.kv_head) * pages_.page_size +
          key % pages_.page_size;
      scales[i] = index < kScales && page >= 0 && key < part_.keys ? from[row] : 0.f;
    }
  }
  __device__ __forceinline__ void store_scales(const float (&scales)[kScalesAThread], float* to, int first) const {
#pragma unroll
    for (int i = 0; i < kScalesAThread; ++i) {
      const int index = thread_ + i * C::kConverterThreads - first;
      if (index >= 0 && index < C::kBlockKv) to[index] = scales[i];
    }
  }

  // [64 keys][head_dim] bytes to panels of 64 columns under the swizzle. A thread has the same eight columns in every
  // kRows-th key; loads stand before what depends on them, several keys at a time.
  template <class To>
  __device__ __forceinline__ void convert_tile(const std::uint8_t* raw, std::uint8_t* tile) const {
    constexpr int kUnits = C::kHeadDim / 8, kRows = C::kConverterThreads / kUnits, kTogether = 4;
    static_assert(C::kConverterThreads % kUnits == 0);
    const int column = thread_ % kUnits, first = thread_ / kUnits;
    std::uint8_t* const to = tile + column / 8 * C::kKvPanelBytes;
#pragma unroll 1
    for (int key = first; key < C::kBlockKv; key += kTogether * kRows) {
      uint2 bytes[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = min(key + i * kRows, C::kBlockKv - 1);
        bytes[i] = *reinterpret_cast<const uint2*>(raw + row * C::kHeadDim + 8 * column);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = key + i * kRows;
        const uint2 low = from_int8<To>(bytes[i].x), high = from_int8<To>(bytes[i].y);
        if (row >= C::kBlockKv) continue;
        *reinterpret_cast<uint4*>(to + row * 128 + ((column % 8) ^ (row & 7)) * 16) =
            make_uint4(low.x, low.y, high.x, high.y);
      }
    }
  }

  __device__ __forceinline__ static void give(std::uint64_t& barrier) {
    ptx::fence_async_shared();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  }

  Int8Storage<C>& shared_;
  const ForwardParams& p_;
  const PagedKeys& pages_;
  const DecodePart& part_;
  ChunkPages chunk_;
  int thread_;
  int scales_of_ = -1;  // the key tile whose scales are on their way
  float next_scales_[kScalesAThread] = {};
  Ring<C::kRawStages> raw_;
  Ring<C::kStages> ring_;
};

}  // namespace rootdk::cuda::hopper
