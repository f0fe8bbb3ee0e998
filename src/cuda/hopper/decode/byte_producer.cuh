#pragma once

// The producer warp of decode over an 8-bit cache: loads keys, values and their scales.

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/producer.cuh"
#include "cuda/ptx/async_copy.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class ByteProducer {
 public:
  __device__ __forceinline__ ByteProducer(ByteDecodeStorage<C>& shared, const ForwardMaps& maps,
                                          const ForwardParams& params, const CacheKeys& cache)
      : shared_(shared), maps_(maps), p_(params), cache_(cache), part_(shared.part), chunk_(shared.part, cache) {}

  __device__ __forceinline__ void run() {
    walk_parts<C>(
        part_, p_, [&](int index) { chunk_.begin(index); }, [&](int j) { load(j); }, [](int) {});
    ptx::copy_async_wait_all();
  }

 private:
  __device__ __forceinline__ void load(int j) {
    constexpr PanelLayout kLayout{.panels = C::kPanels, .columns = C::kPanelColumns, .row_bytes = C::kPanelColumns};
    std::uint64_t& full = shared_.full[ring_.stage];
    announce(full, shared_.empty[ring_.stage], ring_.parity, 2 * C::kKvBytes);
    load_boxes<C, kLayout>(maps_.k, shared_.k[ring_.stage], full, cache_, chunk_, part_.kv_head, j);
    load_boxes<C, kLayout>(maps_.v, shared_.v[ring_.stage], full, cache_, chunk_, part_.kv_head, j);
    load_scales(j);
    ptx::copy_async_arrive(ptx::shared_address(&full));
    ring_.advance();
  }

  // Past the end of the sequence there is no page, and memory may hold anything: the scale is 0.
  __device__ __forceinline__ void load_scales(int j) const {
#pragma unroll
    for (int first = 0; first < C::kBlockKv; first += 32) {
      const int in_tile = first + static_cast<int>(threadIdx.x & 31), key = j * C::kBlockKv + in_tile;
      const int page = chunk_.of(key);
      const bool exists = page >= 0 && key < part_.keys;
      const std::int64_t row =
          (static_cast<std::int64_t>(page) * (p_.heads / p_.group) + part_.kv_head) * cache_.page_size +
          key % cache_.page_size;
      const std::int64_t from = exists ? row : 0;
      ptx::copy_async_4(ptx::shared_address(&shared_.k_scales[ring_.stage][in_tile]), cache_.k_scales + from, exists);
      ptx::copy_async_4(ptx::shared_address(&shared_.v_scales[ring_.stage][in_tile]), cache_.v_scales + from, exists);
    }
  }

  ByteDecodeStorage<C>& shared_;
  const ForwardMaps& maps_;
  const ForwardParams& p_;
  const CacheKeys& cache_;
  const DecodePart& part_;
  ChunkPages chunk_;
  Ring<C::kStages> ring_;
};

}  // namespace rootdk::cuda::hopper
