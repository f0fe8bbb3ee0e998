#pragma once

// The products multiply weights of 0 with the values of keys that a row does not see, and 0 times NaN is NaN. Values
// that no row of the tile sees are set to 0 beforehand. Values that only some rows see are not: where a tile has
// several tokens, and a row's output is not finite although its weights are, it is computed again, key by key, over the
// keys that the row sees. This is slow and very rare.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/decode/byte_widen.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

template <class C>
concept StoresBytes = requires {
  C::kStored;
};

// A row of the keys or the values, as the kernel would see it.
template <class C>
class StoredRow {
 public:
  __device__ __forceinline__ StoredRow(const DeviceTensor& tensor, const float* scales, const CacheKeys& cache,
                                       const DecodePart& part, const ForwardParams& p, int key) {
    int entry = part.batch, row = key;
    if constexpr (C::kCached) {
      entry = cache.tables[part.table + key / cache.page_size];
      row = key % cache.page_size;
    }
    offset_ = entry * tensor.batch_stride + part.kv_head * tensor.head_stride + row * tensor.row_stride;
    data_ = tensor.data;
    if constexpr (StoresBytes<C>) {
      const std::int64_t page_rows = static_cast<std::int64_t>(p.heads / p.group) * cache.page_size;
      scale_ = scales[entry * page_rows + part.kv_head * cache.page_size + row];
    }
  }

  __device__ __forceinline__ float operator[](int column) const {
    if constexpr (StoresBytes<C>) {
      const std::uint32_t byte = static_cast<const std::uint8_t*>(data_)[offset_ + column];
      const std::uint32_t pair = widen<C::kStored>(byte).x;
      return __half2float(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu))) * scale_;
    } else {
      return static_cast<float>(static_cast<const typename C::Element*>(data_)[offset_ + column]);
    }
  }

 private:
  const void* data_;
  std::int64_t offset_;
  float scale_ = 1.f;
};

// One element of a part's unnormalised output; m: the largest logit of the row in this part.
template <class C>
__device__ __forceinline__ float repaired_output(const ForwardParams& p, const CacheKeys& cache, const DecodePart& part,
                                                 int index, int row, int column, float m) {
  using Element = typename C::Element;
  const QueryHead at = row_in(part, p, row);
  const Element* q = query_row<Element>(p, part, at);
  const int position = part.position + at.query;
  const DropoutRule dropout{p.terms.dropout_seed, p.terms.dropout_threshold, p.terms.dropout_keep_scale};
  const int part_keys = part.part_tiles * C::kBlockKv, end = min((index + 1) * part_keys, part.keys);
  float sum = 0.f;
#pragma unroll 1
  for (int key = index * part_keys; key < end; ++key) {
    if (!keeps(part, p, position, key)) continue;
    const StoredRow<C> k(p.k, cache.k_scales, cache, part, p, key);
    float logit[4] = {};
#pragma unroll 1
    for (int d = 0; d < p.head_dim; ++d) logit[0] = fmaf(static_cast<float>(q[d]), k[d], logit[0]);
    const TileCoordinates tile{.sequence = part.batch,
                               .head = {at.head, at.head},
                               .row = {at.query, at.query},
                               .position = {position, position},
                               .column = key,
                               .q_len = p.q_len,
                               .kv_len = key + 1};
    scores_to_logits<Element, Terms::any, Threads::single>(logit, tile, p);
    if (logit[0] == -INFINITY) continue;
    if (p.terms.dropout_threshold &&
        !dropout.keeps(static_cast<std::uint32_t>(part.batch), static_cast<std::uint32_t>(at.head),
                       static_cast<std::uint32_t>(at.query), static_cast<std::uint32_t>(key))) {
      continue;
    }
    const StoredRow<C> v(p.v, cache.v_scales, cache, part, p, key);
    sum = fmaf(ptx::exp2_approximate(logit[0] - m), v[column], sum);
  }
  return sum;
}

}  // namespace rootdk::cuda::hopper
