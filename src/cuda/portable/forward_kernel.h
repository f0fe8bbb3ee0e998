#pragma once

// The fused forward pass. A block owns a tile of queries and `Columns` columns of their output; keys and values stream
// past it. While one of the two is multiplied, the other is loaded.

#include "cuda/common/row_statistics.h"
#include "cuda/portable/logits.h"
#include "cuda/portable/product.h"

namespace rootdk::cuda::portable {

// The layout of shared memory: the query tile, one key tile, one value tile, and the vector of the additive score.
template <class Compute, int Columns>
struct ForwardShared {
  using Shape = TileShape<Compute>;
  static constexpr int kKeys = kForwardStream<Compute, Columns>;
  int head_pitch = 0;
  static constexpr int kValuePitch = pitch_of<Compute>(Columns);

  __host__ __device__ explicit ForwardShared(int head_dim)
      : head_pitch(pitch_of<Compute>(round_up(head_dim, kDepthStep))) {}
  __host__ __device__ int key_offset() const { return Shape::kOwned * head_pitch; }
  __host__ __device__ int value_offset() const { return key_offset() + kKeys * head_pitch; }
  __host__ __device__ int vector_offset() const { return value_offset() + kKeys * kValuePitch; }
  __host__ __device__ int bytes(int vector_length) const {
    return vector_offset() * static_cast<int>(sizeof(Compute)) + vector_length * static_cast<int>(sizeof(float));
  }
};

// The first key tile from `key` on that the block mask does not drop whole; `end` where there is none.
__device__ inline int next_key_tile(const HeadRule& head, Range rows, int key, int step, int end) {
  while (key < end && head.block_mask_drops(rows, {key, min(key + step, end)})) key += step;
  return key;
}

// Turns logits into e^(logit - maximum), dropout applied, and keeps the rows' sums. Returns in `factor` what the output
// accumulated so far must be multiplied by.
template <int N>
__device__ void online_softmax(WarpTile<N>& s, RowSums (&sums)[2], float (&factor)[2], const HeadRule& head,
                               TileCorner<Rows::queries> corner, bool with_moments) {
  float maximum[2] = {-INFINITY, -INFINITY};
  for_each_element<N>([&](int n, int e) { maximum[e / 2] = fmaxf(maximum[e / 2], s[n][e]); });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    factor[half] = sums[half].rescale(fmaxf(sums[half].maximum, row_max(maximum[half])));
  }
  if (with_moments) {
    for_each_element<N>([&](int n, int e) { s[n][e] = sums[e / 2].add(s[n][e], true); });
  } else {
    for_each_element<N>([&](int n, int e) { s[n][e] = sums[e / 2].add(s[n][e], false); });
  }
  if (!head.rule.dropout.active()) return;
  const TileBits keeps = dropout_keeps<N>(head, corner);
  for_each_element<N>([&](int n, int e) { s[n][e] *= has_bit(keeps, n, e) ? head.rule.dropout.keep_scale : 0.0f; });
}

// Divides by the softmax's denominator and writes output and statistics of the warp's rows.
template <int N>
__device__ void store_forward(const ForwardArguments& args, WarpTile<N>& o, RowSums (&sums)[2], const HeadRule& head,
                              int row, int part) {
  const Sequence& sequence = head.sequence;
  const float sink = args.rule.sinks ? args.rule.sinks(head.head) : -INFINITY;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    RowSums total = sums[half];
    total.weight = row_sum(total.weight);
    total.moment = row_sum(total.moment);
    total.square = row_sum(total.square);
    const RowResult result = finish(total, sink);
    const int i = row + fragment_row(2 * half);
    if (i >= sequence.q_len) continue;

    const std::int64_t offset = args.out.offset(sequence.entry, head.head, sequence.q_begin + i);
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = part * 8 * N + fragment_column(n, e);
        const float value = total.weight == 0.0f ? 0.0f : o[n][2 * half + e] * result.max_weight;
        if (column < args.out.columns) store_float(args.out.data, args.out.dtype, offset + column, value);
      }
    }
    if (part != 0 || lane_index() % 4 != 0) continue;
    const int at = sequence.q_begin + i;
    if (args.lse) args.lse(sequence.entry, head.head, at) = result.lse;
    if (args.max_logit) args.max_logit(sequence.entry, head.head, at) = result.max_logit;
    if (args.max_weight) args.max_weight(sequence.entry, head.head, at) = result.max_weight;
    if (args.entropy) args.entropy(sequence.entry, head.head, at) = result.entropy;
    if (args.sum_p2) args.sum_p2(sequence.entry, head.head, at) = result.sum_p2;
  }
}

template <class Compute, int Columns, bool Additive>
__global__ void __launch_bounds__(TileShape<Compute>::kThreads)
    forward_kernel(const __grid_constant__ ForwardArguments args) {
  using Shape = TileShape<Compute>;
  using Shared = ForwardShared<Compute, Columns>;
  constexpr int kKeys = Shared::kKeys;
  extern __shared__ __align__(16) unsigned char shared_memory[];

  BlockWork work = BlockWork::of(args.rule.heads, args.row_blocks, args.parts);
  work.tile = args.row_blocks - 1 - work.tile;  // under a causal mask the last rows have most work: begin with them
  const HeadRule head(args.rule, args.rule.sequence(work.sequence), work.head);
  const Sequence& sequence = head.sequence;
  const int first_row = work.tile * Shape::kOwned;
  if (first_row >= sequence.q_len) return;
  const Range rows{first_row, min(first_row + Shape::kOwned, sequence.q_len)};
  const Range keys = args.rule.keys_of(rows, sequence);

  const Shared shared(args.rule.head_dim);
  Compute* q_tile = reinterpret_cast<Compute*>(shared_memory);
  Compute* k_tile = q_tile + shared.key_offset();
  Compute* v_tile = q_tile + shared.value_offset();
  float* vector = reinterpret_cast<float*>(q_tile + shared.vector_offset());
  const int padded_head_dim = round_up(args.rule.head_dim, kDepthStep);
  const int kv_head = work.head / args.rule.group();

  const auto load_keys = [&](int key) {
    load_tile(k_tile, shared.head_pitch, kKeys, padded_head_dim,
              {args.k, sequence.entry, kv_head, sequence.kv_begin + key, sequence.kv_visible - key});
    ptx::copy_async_commit();
  };
  const auto load_values = [&](int key) {
    load_tile(
        v_tile, Shared::kValuePitch, kKeys, Columns,
        {args.v, sequence.entry, kv_head, sequence.kv_begin + key, sequence.kv_visible - key, work.part * Columns});
    ptx::copy_async_commit();
  };

  load_tile(q_tile, shared.head_pitch, Shape::kOwned, padded_head_dim,
            {args.q, sequence.entry, work.head, sequence.q_begin + first_row, sequence.q_len - first_row});
  if constexpr (Additive) {
    for (int d = static_cast<int>(threadIdx.x); d < args.rule.head_dim; d += Shape::kThreads) {
      vector[d] = args.rule.additive_v(work.head, d);
    }
  }
  WarpTile<Columns / 8> o;  // [16 rows of the warp, Columns]
  RowSums sums[2];
  const bool with_moments = args.entropy || args.sum_p2;
  const int warp_row = 16 * warp_index();
  // One pass over the keys; a second, careful one where the first met NaN or infinity.
  for (bool careful = false;; careful = true) {
    clear<Columns / 8>(o);
    sums[0] = sums[1] = RowSums{};
    int key = next_key_tile(head, rows, keys.begin / kKeys * kKeys, kKeys, keys.end);
    if (key < keys.end) load_keys(key);
    while (key < keys.end) {
      ptx::copy_async_wait<0>();
      __syncthreads();  // keys have arrived; all warps are done with the last values
      load_values(key);

      WarpTile<kKeys / 8> s;  // [16 rows of the warp, kKeys]
      clear<kKeys / 8>(s);
      if constexpr (Additive) {
        add_additive_scores<kKeys / 8>(s, q_tile + warp_row * shared.head_pitch, k_tile, shared.head_pitch, vector,
                                       args.rule.head_dim);
      } else {
        add_rows_by_rows<Compute, kKeys / 8>(s, q_tile + warp_row * shared.head_pitch, k_tile, shared.head_pitch,
                                             padded_head_dim);
      }
      const TileCorner<Rows::queries> at{first_row + warp_row, key};
      const Range tile_rows{first_row, first_row + Shape::kOwned};
      FeatureTile<kKeys / 8> features;
      to_logits<kKeys / 8>(s, features, head, at, args.rule.ranges_keep(tile_rows, {key, key + kKeys}, sequence));
      float factor[2];
      online_softmax<kKeys / 8>(s, sums, factor, head, at, with_moments);
      for_each_element<Columns / 8>([&](int n, int e) { o[n][e] *= factor[e / 2]; });

      ptx::copy_async_wait<0>();
      __syncthreads();  // values have arrived; all warps are done with these keys
      key = next_key_tile(head, rows, key + kKeys, kKeys, keys.end);
      if (key < keys.end) load_keys(key);
      if (careful) {
        add_tile_by_columns_carefully<Compute, Columns / 8, kKeys / 8>(o, s, v_tile, Shared::kValuePitch);
      } else {
        add_tile_by_columns<Compute, Columns / 8, kKeys / 8>(o, s, v_tile, Shared::kValuePitch);
      }
    }
    if (careful || !__syncthreads_or(any_not_finite<Columns / 8>(o))) break;
  }
  store_forward<Columns / 8>(args, o, sums, head, first_row + warp_row, work.part);
}

}  // namespace rootdk::cuda::portable
