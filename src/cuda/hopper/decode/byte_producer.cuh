#pragma once

// The producer warps of decode over an 8-bit cache: the first loads keys and their scales, the second values and
// theirs.

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/producer.cuh"
#include "cuda/ptx/async_copy.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class ByteProducer {
 public:
  __device__ __forceinline__ ByteProducer(ByteDecodeStorage<C>& shared, const ForwardMaps& maps,
                                          const ForwardParams& params, const CacheKeys& cache)
      : shared_(shared),
        keys_(threadIdx.x < C::kConsumerThreads + 32),
        map_(keys_ ? maps.k : maps.v),
        scales_(keys_ ? cache.k_scales : cache.v_scales),
        aligned_(cache.page_size % 4 == 0 && reinterpret_cast<std::uintptr_t>(scales_) % 16 == 0),
        p_(params),
        cache_(cache),
        part_(shared.part),
        chunk_(shared.part, cache) {}

  __device__ __forceinline__ void run() {
    walk_parts<C>(
        part_, p_, [&](int index) { chunk_.begin(index); }, [&](int j) { load(j); }, [](int) {});
    ptx::copy_async_wait_all();
  }

 private:
  static constexpr int kScalesOfLane = 4;

  __device__ __forceinline__ void load(int j) {
    constexpr PanelLayout kLayout{.panels = C::kPanels, .columns = C::kPanelColumns, .row_bytes = C::kPanelColumns};
    std::uint64_t& full = shared_.full[ring_.stage];
    announce(full, shared_.empty[ring_.stage], ring_.parity, C::kKvBytes);
    load_boxes<C, kLayout>(map_, keys_ ? shared_.k[ring_.stage] : shared_.v[ring_.stage], full, cache_, chunk_,
                           part_.kv_head, j);
    load_scales(j);
    ptx::copy_async_arrive(ptx::shared_address(&full));
    ring_.advance();
  }

  // Each lane loads the scales of four keys, which are on one page. Past the end of the sequence there is no page, and
  // memory may hold anything: the scale is 0.
  __device__ __forceinline__ void load_scales(int j) const {
    const int in_tile = kScalesOfLane * static_cast<int>(threadIdx.x & 31), key = j * C::kBlockKv + in_tile;
    const int page = chunk_.of(key), row = chunk_.row_of(key);
    if (in_tile >= C::kBlockKv) return;
    const int exist = page < 0 ? 0 : min(max(part_.keys - key, 0), kScalesOfLane);
    const std::int64_t first =
        (static_cast<std::int64_t>(page) * (p_.heads / p_.group) + part_.kv_head) * cache_.page_size + row;
    const float* from = scales_ + (exist > 0 ? first : 0);
    float* scales = keys_ ? shared_.k_scales[ring_.stage] : shared_.v_scales[ring_.stage];
    const std::uint32_t to = ptx::shared_address(scales + in_tile);
    if (aligned_) {
      ptx::copy_async_16(to, from, 4 * exist);
    } else {
#pragma unroll
      for (int i = 0; i < kScalesOfLane; ++i) ptx::copy_async_4(to + 4 * i, from + (i < exist ? i : 0), i < exist);
    }
  }

  ByteDecodeStorage<C>& shared_;
  const bool keys_;  // else values
  const CUtensorMap& map_;
  const float* const scales_;
  const bool aligned_;  // the scales of four keys are one vector
  const ForwardParams& p_;
  const CacheKeys& cache_;
  const DecodePart& part_;
  ChunkPages chunk_;
  Ring<C::kStages> ring_;
};

}  // namespace rootdk::cuda::hopper
