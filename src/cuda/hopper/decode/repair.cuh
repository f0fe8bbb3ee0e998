#pragma once

// The products multiply weights of 0 with the values of keys that a row does not see, and 0 times NaN is NaN. Values
// that no row of a tile sees by its position are set to 0 beforehand. Values that only some rows see are not, where a
// tile has several tokens, nor those that a bias of -inf or dropout hides. If a part of a row's output is not finite
// although its weights are, merge_and_repair_kernel computes it again, key by key, over the keys that the row sees.
// This is slow and very rare.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/decode/byte_widen.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

// A row of the keys or the values.
template <class Element>
class StoredRow {
 public:
  __device__ __forceinline__ StoredRow(const DeviceTensor& tensor, const float* scales, const ForwardParams& p,
                                       const CacheKeys& cache, const DecodePart& part, int key)
      : data_(tensor.data), stored_(cache.stored) {
    int entry = part.batch, row = key;
    if (cache.tiles) {
      entry = cache.tables[part.table + key / cache.page_size];
      row = key % cache.page_size;
    }
    offset_ = entry * tensor.batch_stride + part.kv_head * tensor.head_stride + row * tensor.row_stride;
    if (stored_ == Stored::element) return;
    const std::int64_t kv_heads = p.heads / p.group;
    scale_ = scales[(entry * kv_heads + part.kv_head) * cache.page_size + row];
  }

  __device__ __forceinline__ float operator[](int column) const {
    if (stored_ == Stored::element) return static_cast<float>(static_cast<const Element*>(data_)[offset_ + column]);
    const std::uint32_t byte = static_cast<const std::uint8_t*>(data_)[offset_ + column];
    const uint2 pairs = stored_ == Stored::int8 ? widen<ByteType::int8>(byte) : widen<ByteType::e4m3>(byte);
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pairs.x & 0xffffu))) * scale_;
  }

 private:
  const void* data_;
  Stored stored_;
  std::int64_t offset_ = 0;
  float scale_ = 1.f;
};

// One element of a part's unnormalised output; m: the largest logit of the row in this part.
template <class Element>
__device__ __forceinline__ float repaired_output(const ForwardParams& p, const CacheKeys& cache, const DecodePart& rows,
                                                 int part, int row, int column, float m) {
  const QueryHead at = row_in(rows, p, row);
  const Element* q = query_row<Element>(p, rows, at);
  const int position = rows.position + at.query;
  const DropoutRule dropout{p.terms.dropout_seed, p.terms.dropout_threshold, p.terms.dropout_keep_scale};
  const auto word = [](int x) { return static_cast<std::uint32_t>(x); };
  const int part_keys = cache.tiles ? kChunkKeys : p.split_tiles * kTensorTileKeys;
  const int end = min((part + 1) * part_keys, rows.keys);
  float sum = 0.f;
#pragma unroll 1
  for (int key = part * part_keys; key < end; ++key) {
    if (!keeps(rows, p, position, key)) continue;
    const StoredRow<Element> k(p.k, cache.k_scales, p, cache, rows, key), v(p.v, cache.v_scales, p, cache, rows, key);
    float logit[4] = {};
#pragma unroll 1
    for (int d = 0; d < p.head_dim; ++d) logit[0] = fmaf(static_cast<float>(q[d]), k[d], logit[0]);
    const TileCoordinates tile{.sequence = rows.batch,
                               .head = {at.head, at.head},
                               .row = {at.query, at.query},
                               .position = {position, position},
                               .column = key,
                               .q_len = p.q_len,
                               .kv_len = key + 1};
    scores_to_logits<Element, Terms::any, Threads::single>(logit, tile, p);
    if (logit[0] == -INFINITY) continue;
    if (p.terms.dropout_threshold && !dropout.keeps(word(rows.batch), word(at.head), word(at.query), word(key))) {
      continue;
    }
    sum = fmaf(ptx::exp2_approximate(logit[0] - m), v[column], sum);
  }
  return sum;
}

// A row of the partial results.
struct PartialRow {
  int tile, kv_head, in_tile;
};

// One element of a row's unnormalised output; top: the largest logit of the row. Not inlined, and without a reference
// to what the caller has in registers: it would cost the caller its registers.
template <class Element>
__device__ __noinline__ float repaired_sum(const ForwardParams& p, const CacheKeys& cache, PartialRow row, int column,
                                           int parts, float top) {
  const DecodePart rows =
      cache.tiles ? rows_of_cache_tile(p, cache, row.tile, row.kv_head) : rows_of_tensor_tile(p, row.tile, row.kv_head);
  const std::int64_t parts_apart = partial_rows(p, 1, 0, 0);
  const std::int64_t first = partial_rows(p, 0, row.tile, row.kv_head) + row.in_tile;
  float sum = 0.f;
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    const std::int64_t at = part * parts_apart + first;
    const float4 sums = p.partial_sums[at];
    const float share = ptx::exp2_approximate(sums.x - top);
    if (sums.y == 0.f || share == 0.f) continue;  // no key seen, so no output; or too small to count
    float x = p.partial_out[at * p.value_dim + column];
    if (!isfinite(x)) x = repaired_output<Element>(p, cache, rows, part, row.in_tile, column, sums.x);
    sum = fmaf(share, x, sum);
  }
  return sum;
}

}  // namespace rootdk::cuda::hopper
