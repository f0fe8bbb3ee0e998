#pragma once

// Decode of one query over tensors, up to eight rows a key head. One sequence of a few thousand keys takes memory a few
// microseconds: less than it takes to fill a ring of tiles, to pass each tile through barriers and to merge in a second
// kernel. So each warp loads keys and values straight into the operands of its products, and asks for the next ones as
// soon as it has used them. The blocks that share a key head are a cluster, which merges through shared memory.
//
// Products are transposed, so that the rows are the eight columns of a product: s^T = k q^T and o^T = v^T p^T. The
// order of the summed columns does not matter as long as both operands use the same one: a thread takes columns that
// are adjacent in memory. All rows see the same keys; others are not loaded, so that what they hold does not matter.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/decode/byte_scores.cuh"
#include "cuda/hopper/decode/direct_config.h"
#include "cuda/hopper/decode/merge.cuh"
#include "cuda/hopper/decode/part.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mma.cuh"

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

// One warp: its share of the keys of a block.
template <class C>
class DirectWarp {
 public:
  using Element = typename C::Element;

  __device__ __forceinline__ DirectWarp(const ForwardParams& p, const DecodePart& part)
      : p_(p),
        part_(part),
        quad_(static_cast<int>(threadIdx.x) % 32 / 4),
        thread_(static_cast<int>(threadIdx.x) % 4),
        plain_(!p.terms.softcap.cap_log2 && !p.terms.alibi_slopes.data && !p.terms.relative_table.data),
        k_(head_of(p.k)),
        v_(head_of(p.v)) {
#pragma unroll
    for (int i = 0; i < C::kKeyVectors; ++i) {
      const int column = 32 * i + 8 * thread_;
      q_[i] = make_uint4(0, 0, 0, 0);
      if (quad_ < part.rows && column < p.head_dim) {
        q_[i] = ptx::load_once(query_row<Element>(p, part, row_in(part, p, quad_)) + column);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) state_.m[r] = tops_[r] = -INFINITY, state_.l[r] = state_.a[r] = state_.b[r] = 0.f;
#pragma unroll
    for (int i = 0; i < C::kOutputBlocks; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o_[i][c] = 0.f;
    }
  }

  // The keys [begin, end) of the block.
  __device__ __forceinline__ void run(int begin, int end) {
    int first = begin + static_cast<int>(threadIdx.x) / 32 * C::kWarpKeys;
    Keys k[C::kSlices];
    Values v[C::kSlices];
    load(k, first, end);
    load(v, first, end);
#pragma unroll 1
    for (; first < end; first += C::kBlockKeys) {
      Scores s;
      multiply_qk(k, s);
      load(k, first + C::kBlockKeys, end);
      to_logits(first, end, s);
      uint2 weights[C::kSlices];
      softmax(s, weights);
      multiply_pv(weights, v);
      load(v, first + C::kBlockKeys, end);
    }
  }

  // The sums of the warp, relative to the largest logits.
  __device__ __forceinline__ void store(DirectStorage<C>& shared) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      RowSums sums{column_max(tops_[r]), 0.f, 0.f, 0.f};
      const float4 own =
          make_float4(state_.m[r], column_sum(state_.l[r]), column_sum(state_.a[r]), column_sum(state_.b[r]));
      const float share = join(sums, own);
      const int row = 2 * thread_ + r;
      if (row >= part_.rows) continue;
      if (quad_ == 0) shared.sums[warp][row] = make_float4(sums.m, sums.l, sums.a, sums.b);
#pragma unroll
      for (int i = 0; i < C::kOutputBlocks; ++i) {
        const int column = 8 * quad_ + 2 * i;
        *reinterpret_cast<float2*>(&shared.out[warp][row][column]) =
            make_float2(o_[i][r] * share, o_[i][2 + r] * share);
      }
    }
  }

 private:
  using Scores = KeyScores<4 * C::kSlices>;
  static constexpr float kSlack = 8.f;  // of the references: weights reach 2^8, far below the largest f16

  // Of a slice this thread has the keys quad_ and quad_ + 8, columns 32 i + 8 thread_ and the seven after it.
  struct Keys {
    uint4 of[2][C::kKeyVectors];
  };
  // The values 2 thread_, 2 thread_ + 1 and the two that are 8 further, columns 8 quad_ and the seven after it.
  struct Values {
    uint4 of[4];
  };

  // Zeros where there is no such key or column.
  __device__ __forceinline__ uint4 load_vector(const Element* head, const DeviceTensor& tensor, int columns, int key,
                                               int column, bool seen) const {
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (seen && column < columns) vector = ptx::load_once(head + key * tensor.row_stride + column);
    return vector;
  }
  __device__ __forceinline__ const Element* head_of(const DeviceTensor& tensor) const {
    return static_cast<const Element*>(tensor.data) + part_.batch * tensor.batch_stride +
           part_.kv_head * tensor.head_stride;
  }
  __device__ __forceinline__ void load(Keys (&k)[C::kSlices], int first, int end) const {
#pragma unroll
    for (int slice = 0; slice < C::kSlices; ++slice) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = first + 16 * slice + 8 * e + quad_;
#pragma unroll
        for (int i = 0; i < C::kKeyVectors; ++i) {
          k[slice].of[e][i] = load_vector(k_, p_.k, p_.head_dim, key, 32 * i + 8 * thread_, key < end);
        }
      }
    }
  }
  __device__ __forceinline__ void load(Values (&v)[C::kSlices], int first, int end) const {
#pragma unroll
    for (int slice = 0; slice < C::kSlices; ++slice) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + 16 * slice + e / 2 * 8 + 2 * thread_ + e % 2;
        v[slice].of[e] = load_vector(v_, p_.v, p_.value_dim, key, 8 * quad_, key < end);
      }
    }
  }

  // s^T [keys of the warp, 8 rows]. Two accumulators, because consecutive products into one wait for each other.
  __device__ __forceinline__ void multiply_qk(const Keys (&k)[C::kSlices], Scores& s) const {
#pragma unroll
    for (int slice = 0; slice < C::kSlices; ++slice) {
      float sums[2][4] = {};
#pragma unroll
      for (int i = 0; i < C::kKeyVectors; ++i) {
        const uint4 &low = k[slice].of[0][i], &high = k[slice].of[1][i];
        ptx::mma<Element>(sums[0], make_uint4(low.x, high.x, low.y, high.y), q_[i].x, q_[i].y);
        ptx::mma<Element>(sums[1], make_uint4(low.z, high.z, low.w, high.w), q_[i].z, q_[i].w);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {  // row c % 2, key 8 (c / 2)
        s.of[4 * slice + c % 2 * 2 + c / 2] = sums[0][c] + sums[1][c];
      }
    }
  }

  __device__ __forceinline__ void to_logits(int first, int end, Scores& s) const {
    if (plain_) {
#pragma unroll
      for (float& x : s.of) x *= p_.scale_log2;
    } else {
      for_each_score(s, [&](float& x, int r, int offset) {
        const QueryHead at = row_in(part_, p_, min(2 * thread_ + r, part_.rows - 1));
        x = direct_logit<Element>(p_, part_.batch, at, part_.position, first + quad_ + offset, x);
      });
    }
    if (first + C::kWarpKeys > end) {
      for_each_score(s, [&](float& x, int, int offset) {
        if (first + quad_ + offset >= end) x = -INFINITY;
      });
    }
  }

  // Logits to the weights that multiply values. A reference follows the largest logit of its row only when that is
  // kSlack above it, usually once, so that most steps exchange nothing between threads.
  __device__ __forceinline__ void softmax(Scores& s, uint2 (&weights)[C::kSlices]) {
    constexpr SoftmaxStep kStep{.first = false, .guarded = true, .statistics = true};
    float maximum[2], negated[2];
    row_maxima<2>(s.of, maximum);
    raise_references(maximum);
#pragma unroll
    for (int r = 0; r < 2; ++r) negated[r] = state_.m[r] == -INFINITY ? 0.f : -state_.m[r];
    exponentials<kStep>(s.of, 1.f, negated, state_);
#pragma unroll
    for (int i = 0; i < C::kSlices; ++i) {
      weights[i].x = ptx::transpose_8x8(ptx::pack<Element>(s.of[4 * i], s.of[4 * i + 2]));
      weights[i].y = ptx::transpose_8x8(ptx::pack<Element>(s.of[4 * i + 1], s.of[4 * i + 3]));
    }
  }

  __device__ __forceinline__ void raise_references(const float (&maximum)[2]) {
    constexpr SoftmaxStep kStep{.first = false, .guarded = true, .statistics = true};
    bool above = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tops_[r] = fmaxf(tops_[r], maximum[r]);
      above = above || maximum[r] > state_.m[r] + kSlack;
    }
    if (__all_sync(0xffffffffu, !above)) return;
    float raised[2], correction[2], negated[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // a number below the reference leaves it as it is
      const float top = column_max(maximum[r]);
      raised[r] = top > state_.m[r] + kSlack ? top : -INFINITY;
    }
    advance_maxima<kStep, itself>(raised, 1.f, state_, correction, negated);
#pragma unroll
    for (int i = 0; i < C::kOutputBlocks; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o_[i][c] *= correction[c % 2];
    }
  }

  // o^T [columns, 8 rows]. A register of v has two columns of one key, and an operand one column of two keys.
  __device__ __forceinline__ void multiply_pv(const uint2 (&weights)[C::kSlices], const Values (&v)[C::kSlices]) {
    constexpr std::uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
#pragma unroll
    for (int slice = 0; slice < C::kSlices; ++slice) {
#pragma unroll
      for (int i = 0; i < C::kOutputBlocks; ++i) {
        std::uint32_t pairs[4];  // of keys 2 thread_, 2 thread_ + 1 and the two that are 8 further
#pragma unroll
        for (int e = 0; e < 4; ++e) pairs[e] = word(v[slice].of[e], i);
        const uint4 a =
            make_uint4(__byte_perm(pairs[0], pairs[1], kLowHalves), __byte_perm(pairs[0], pairs[1], kHighHalves),
                       __byte_perm(pairs[2], pairs[3], kLowHalves), __byte_perm(pairs[2], pairs[3], kHighHalves));
        ptx::mma<Element>(o_[i], a, weights[slice].x, weights[slice].y);
      }
    }
  }
  static __device__ __forceinline__ std::uint32_t word(const uint4& vector, int i) {
    return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
  }

  const ForwardParams& p_;
  const DecodePart& part_;
  const int quad_, thread_;            // of the warp; of the quad
  const bool plain_;                   // logits are scores times the scale
  const Element *const k_, *const v_;  // of the key head
  uint4 q_[C::kKeyVectors];
  RowState state_;                // of the rows 2 thread_ and 2 thread_ + 1; m: the reference
  float tops_[2];                 // the largest logits that this thread has seen
  float o_[C::kOutputBlocks][4];  // o^T: block i has the columns 8 quad_ + 2 i and the one after it
};

// Joins the sums of the parts of a row, and one column of their outputs, in order.
template <int Parts, class Sums, class Out>
__device__ __forceinline__ RowSums merge_direct(Sums sums_of, Out out_of, float& out) {
  RowSums joint{-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < Parts; ++i) joint.m = fmaxf(joint.m, sums_of(i).x);
  out = 0.f;
#pragma unroll
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

// All threads of the cluster, or of the only block.
__device__ __forceinline__ void sync_parts(const ForwardParams& p) {
  if (p.splits > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

// The keys that the query sees.
struct SeenKeys {
  int begin, end;
};
__device__ __forceinline__ SeenKeys seen_keys(const DecodePart& part, const ForwardParams& p) {
  return {max(part.position - p.left, 0), keys_end(part, p, part.position)};
}

// The grid is [batch, kv_heads, splits]; the splits of a key head are a cluster.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    direct_decode_kernel(const __grid_constant__ ForwardParams p) {
  using Element = typename C::Element;
  __shared__ DirectStorage<C> shared;
  const int kv_heads = p.heads / p.group, rank = static_cast<int>(blockIdx.x) % p.splits;
  const int head = static_cast<int>(blockIdx.x) / p.splits;
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  if (threadIdx.x == 0) shared.part = rows_of_tensor_tile(p, head / kv_heads, head % kv_heads);
  __syncthreads();
  const DecodePart& part = shared.part;
  {
    const SeenKeys seen = seen_keys(part, p);
    const int part_keys = p.split_tiles * kTensorTileKeys;
    DirectWarp<C> warp(p, part);
    warp.run(max(rank * part_keys, seen.begin), min((rank + 1) * part_keys, seen.end));
    warp.store(shared);
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
  sync_parts(p);
#pragma unroll 1
  for (int i = rank * C::kThreads + static_cast<int>(threadIdx.x); i < count; i += p.splits * C::kThreads) {
    const int row = i / p.value_dim, column = i % p.value_dim;
    float out;
    const RowSums sums = merge_cluster<C>(shared, p.splits, row, column, out);
    const QueryHead at = row_in(part, p, row);
    const RowResult result = row_result(sums, sink_of(p, at.head));
    if (column == 0) store_row_results(p, result, part.batch, at.head, at.query);
    output_row<Element>(p, part.batch, at.head, at.query)[column] = static_cast<Element>(out * result.factor);
  }
  sync_parts(p);  // other blocks load from this one's shared memory until here
}

template <class C>
DirectKernel describe_direct_decode() {
  return {.function = reinterpret_cast<const void*>(&direct_decode_kernel<C>),
          .block_keys = C::kBlockKeys,
          .threads = C::kThreads};
}

}  // namespace rootdk::cuda::hopper
