#pragma once

// Decode of very few rows over tensors. One sequence of a few thousand keys takes memory a few microseconds: less than
// the products of the tensor cores take one after another, and a second kernel that merges. So keys and values go
// straight to registers, scores are summed in f32 by shuffles, and the blocks that share a key head are a cluster,
// which merges through shared memory. Keys that a row does not see are skipped one by one: nothing needs repair.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/decode/direct_config.h"
#include "cuda/hopper/decode/merge.cuh"
#include "cuda/hopper/decode/part.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/hopper/shared/vectors.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"

namespace rootdk::cuda::hopper {

// The logit of one score, with any term. Not inlined: calls with such terms are rare, and it would cost the others
// registers.
template <class Element>
__device__ __noinline__ float direct_logit(const ForwardParams& p, int batch, QueryHead at, int position, int key,
                                           float score) {
  float logit[4] = {score, 0.f, 0.f, 0.f};
  const TileCoordinates tile{.sequence = batch,
                             .head = {at.head, at.head},
                             .row = {at.query, at.query},
                             .position = {position, position},
                             .column = key,
                             .q_len = p.q_len,
                             .kv_len = key + 1};
  scores_to_logits<Element, Terms::any, Threads::single>(logit, tile, p);
  return logit[0];
}

template <class C>
class DirectRows {
 public:
  using Element = typename C::Element;

  __device__ __forceinline__ DirectRows(const ForwardParams& p, const DecodePart& part)
      : p_(p),
        part_(part),
        column_(static_cast<int>(threadIdx.x) % C::kLanes * C::kColumns),
        team_(static_cast<int>(threadIdx.x) / C::kLanes),
        plain_(!p.terms.softcap.cap_log2 && !p.terms.alibi_slopes.data && !p.terms.relative_table.data &&
               p.terms.bias_type == BiasType::none && !p.terms.dropout_threshold) {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const QueryHead at = row_in(part, p, min(r, part.rows - 1));
      q_[r] = make_uint4(0, 0, 0, 0);
      if (column_ < p.head_dim) q_[r] = ptx::load_once(query_row<Element>(p, part, at) + column_);
      sums_[r] = {-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) o_[r][c] = 0.f;
    }
  }

  // The keys [begin, end) of the block.
  __device__ __forceinline__ void run(int begin, int end) {
    const int warp_keys = static_cast<int>(threadIdx.x) / 32 * C::kWarpKeys;
#pragma unroll 1
    for (int first = begin + warp_keys; first < end; first += C::kBlockKeys) {
      if (any_sees(part_, p_, first, first + C::kWarpKeys)) step(first, min(end, part_.keys));
    }
  }

  __device__ __forceinline__ void store(DirectStorage<C>& shared) {
    merge_teams();
    if (team_ % C::kKeys != 0) return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      if (column_ == 0) shared.sums[warp][r] = make_float4(sums_[r].m, sums_[r].l, sums_[r].a, sums_[r].b);
      float4* out = reinterpret_cast<float4*>(&shared.out[warp][r][column_]);
      out[0] = make_float4(o_[r][0], o_[r][1], o_[r][2], o_[r][3]);
      out[1] = make_float4(o_[r][4], o_[r][5], o_[r][6], o_[r][7]);
    }
  }

 private:
  using Scores = float[C::kRows][C::kLoads];

  // Load i is of the key `own + i kKeys`.
  __device__ __forceinline__ void step(int first, int end) {
    const int own = first + team_ % C::kKeys;
    uint4 k[C::kLoads], v[C::kLoads];
    load(p_.k, p_.head_dim, own, end, k);
    load(p_.v, p_.value_dim, own, end, v);
    Scores s;
    multiply_qk(k, s);
    to_logits(first, own, s);
    softmax(s);
    if (p_.terms.dropout_threshold) drop(own, s);
    multiply_pv(s, v);
  }

  // Vectors past the end of keys or columns are zeros.
  __device__ __forceinline__ void load(const DeviceTensor& tensor, int columns, int own, int end,
                                       uint4 (&vectors)[C::kLoads]) const {
    const Element* from = static_cast<const Element*>(tensor.data) + part_.batch * tensor.batch_stride +
                          part_.kv_head * tensor.head_stride + own * tensor.row_stride + column_;
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (own + i * C::kKeys < end && column_ < columns) {
        vectors[i] = ptx::load_once(from + i * C::kKeys * tensor.row_stride);
      }
    }
  }

  // The teams of a warp: each adds what the team `step` lanes away has. The first has the sum of all.
  __device__ __forceinline__ void merge_teams() {
    const auto other = [](float x, int step) { return __shfl_xor_sync(0xffffffffu, x, step); };
#pragma unroll
    for (int step = C::kLanes; step < 32; step *= 2) {
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
        const RowSums own = sums_[r];
        const float4 theirs =
            make_float4(other(own.m, step), other(own.l, step), other(own.a, step), other(own.b, step));
        sums_[r] = {fmaxf(own.m, theirs.x), 0.f, 0.f, 0.f};
        const float share = join(sums_[r], make_float4(own.m, own.l, own.a, own.b)),
                    their_share = join(sums_[r], theirs);
#pragma unroll
        for (int c = 0; c < C::kColumns; ++c) {
          o_[r][c] = fmaf(share, o_[r][c], their_share * other(o_[r][c], step));
        }
      }
    }
  }

  // Every thread of a key gets its score. Queries are unpacked here, after the keys were asked for: both arrive
  // together.
  __device__ __forceinline__ void multiply_qk(const uint4 (&k)[C::kLoads], Scores& s) const {
    float q[C::kRows][C::kColumns];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) unpack_vector<Element>(q_[r], q[r]);
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      float x[C::kColumns];
      unpack_vector<Element>(k[i], x);
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) s[r][i] = dot_of_eight(q[r], x);
    }
#pragma unroll
    for (int step = 1; step < C::kLanes; step *= 2) {
#pragma unroll
      for (int i = 0; i < C::kLoads; ++i) {
#pragma unroll
        for (int r = 0; r < C::kRows; ++r) s[r][i] += __shfl_xor_sync(0xffffffffu, s[r][i], step);
      }
    }
  }

  __device__ __forceinline__ void to_logits(int first, int own, Scores& s) const {
    const bool whole = all_see(part_, p_, first, first + C::kWarpKeys);
    if (plain_ && whole) {
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
        for (int i = 0; i < C::kLoads; ++i) s[r][i] *= p_.scale_log2;
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const QueryHead at = row_in(part_, p_, min(r, part_.rows - 1));
      const int position = part_.position + at.query;
#pragma unroll
      for (int i = 0; i < C::kLoads; ++i) {
        const int key = own + i * C::kKeys;
        s[r][i] = keeps(part_, p_, position, key) ? direct_logit<Element>(p_, part_.batch, at, position, key, s[r][i])
                                                  : -INFINITY;
      }
    }
  }

  // Logits to weights; -inf, the logit of a key that is not seen, to -1, so that its value is skipped.
  __device__ __forceinline__ void softmax(Scores& s) {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      RowSums& sums = sums_[r];
      float top = sums.m;
#pragma unroll
      for (int i = 0; i < C::kLoads; ++i) top = fmaxf(top, s[r][i]);
      const float base = top == -INFINITY ? 0.f : top;
      const float shift = ptx::max_or_nan(sums.m - base, kLowestExponent), correction = ptx::exp2_approximate(shift);
      sums.a = correction * fmaf(shift, sums.l, sums.a);
      sums.b *= correction * correction;
      sums.l *= correction;
      sums.m = top;
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) o_[r][c] *= correction;
#pragma unroll
      for (int i = 0; i < C::kLoads; ++i) {
        const bool seen = s[r][i] != -INFINITY;
        const float y = ptx::max_or_nan(s[r][i] - base, kLowestExponent), weight = ptx::exp2_approximate(y);
        sums.l += weight;
        sums.a = fmaf(weight, y, sums.a);
        sums.b = fmaf(weight, weight, sums.b);
        s[r][i] = seen ? weight : -1.f;
      }
    }
  }

  // Dropped weights are skipped, too.
  __device__ __forceinline__ void drop(int own, Scores& s) const {
    const DropoutRule rule{p_.terms.dropout_seed, p_.terms.dropout_threshold, p_.terms.dropout_keep_scale};
    const auto word = [](int x) { return static_cast<std::uint32_t>(x); };
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const QueryHead at = row_in(part_, p_, min(r, part_.rows - 1));
#pragma unroll 1
      for (int i = 0; i < C::kLoads; ++i) {
        const int key = own + i * C::kKeys;
        if (!rule.keeps(word(part_.batch), word(at.head), word(at.query), word(key))) s[r][i] = -1.f;
      }
    }
  }

  __device__ __forceinline__ void multiply_pv(const Scores& weights, const uint4 (&v)[C::kLoads]) {
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      float x[C::kColumns];
      unpack_vector<Element>(v[i], x);
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
        if (weights[r][i] < 0.f) continue;
#pragma unroll
        for (int c = 0; c < C::kColumns; ++c) o_[r][c] = fmaf(weights[r][i], x[c], o_[r][c]);
      }
    }
  }

  const ForwardParams& p_;
  const DecodePart& part_;
  const int column_, team_;
  const bool plain_;  // logits are scores times the scale
  uint4 q_[C::kRows];
  float o_[C::kRows][C::kColumns];
  RowSums sums_[C::kRows];
};

// Joins the sums of the parts of a row, and one column of their outputs, in order.
template <int Parts, class Sums, class Out>
__device__ __forceinline__ RowSums merge_direct(Sums sums_of, Out out_of, float& out) {
  RowSums joint{-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll 16
  for (int i = 0; i < Parts; ++i) joint.m = fmaxf(joint.m, sums_of(i).x);
  out = 0.f;
#pragma unroll 16
  for (int i = 0; i < Parts; ++i) out = fmaf(join(joint, sums_of(i)), out_of(i), out);
  return joint;
}

// The results of one row of all blocks of the cluster, and one column of their outputs. All loads are issued at once: a
// load from another block takes long.
template <class C>
__device__ __forceinline__ RowSums merge_cluster(const DirectStorage<C>& shared, int blocks, int row, int column,
                                                 float& out) {
  const std::uint32_t own_sums = ptx::shared_address(&shared.block_sums[row]);
  const std::uint32_t own_out = ptx::shared_address(&shared.block_out[row][column]);
  float4 sums[kMostClusterBlocks];
  float columns[kMostClusterBlocks];
#pragma unroll
  for (int i = 0; i < kMostClusterBlocks; ++i) {
    sums[i] = make_float4(-INFINITY, 0.f, 0.f, 0.f);
    columns[i] = 0.f;
    if (i >= blocks) continue;
    sums[i] = ptx::load_cluster_float4(ptx::address_in_block(own_sums, i));
    columns[i] = ptx::load_cluster_float(ptx::address_in_block(own_out, i));
  }
  return merge_direct<kMostClusterBlocks>([&](int i) { return sums[i]; }, [&](int i) { return columns[i]; }, out);
}

// The grid is [batch, kv_heads, splits]; the splits of a key head are a cluster.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    direct_decode_kernel(const __grid_constant__ ForwardParams p) {
  using Element = typename C::Element;
  __shared__ DirectStorage<C> shared;
  const int kv_heads = p.heads / p.group, rank = static_cast<int>(blockIdx.x) % p.splits;
  const int head = static_cast<int>(blockIdx.x) / p.splits;
  if (threadIdx.x == 0) shared.part = rows_of_tensor_tile(p, head / kv_heads, head % kv_heads);
  __syncthreads();
  const DecodePart& part = shared.part;
  const int part_keys = p.split_tiles * kTensorTileKeys;
  {
    DirectRows<C> rows(p, part);
    rows.run(rank * part_keys, min((rank + 1) * part_keys, p.kv_len));
    rows.store(shared);
  }
  __syncthreads();
  const int count = part.rows * p.value_dim;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += C::kThreads) {
    const int row = i / p.value_dim, column = i % p.value_dim;
    float out;
    const RowSums sums = merge_direct<C::kWarps>([&](int warp) { return shared.sums[warp][row]; },
                                                 [&](int warp) { return shared.out[warp][row][column]; }, out);
    shared.block_out[row][column] = out;
    if (column == 0) shared.block_sums[row] = make_float4(sums.m, sums.l, sums.a, sums.b);
  }
  if (p.splits > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
#pragma unroll 1
  for (int i = rank * C::kThreads + static_cast<int>(threadIdx.x); i < count; i += p.splits * C::kThreads) {
    const int row = i / p.value_dim, column = i % p.value_dim;
    float out;
    const RowSums sums = merge_cluster<C>(shared, p.splits, row, column, out);
    const QueryHead at = row_in(part, p, row);
    const RowResult result = row_result(sums, sink_of(p, at.head));
    if (column == 0) store_row_results(p, result, part.batch, at.head, at.query);
    output_row<Element>(p, part.batch, at.head, at.query)[column] =
        static_cast<Element>(out * result.factor * p.terms.dropout_keep_scale);
  }
  if (p.splits > 1) ptx::cluster_sync();  // other blocks load from this one's shared memory until here
}

template <class C>
DirectKernel describe_direct_decode() {
  return {.function = reinterpret_cast<const void*>(&direct_decode_kernel<C>),
          .rows = C::kRows,
          .block_keys = C::kBlockKeys,
          .threads = C::kThreads};
}

}  // namespace rootdk::cuda::hopper
