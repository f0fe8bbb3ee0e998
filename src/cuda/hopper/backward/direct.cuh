#pragma once

// The backward pass of very few rows. The tensor cores would multiply tiles of 64 rows, nearly all of them padding, and
// the key tiles of a head would add to one gradient of q in turn. Here a block has a part of the keys of a key head.
// Keys and values go straight to registers, kLanes threads to a row, eight columns each; the gradients of k and v of a
// row are complete where it was loaded. The gradient of q is summed per thread, then over the block, then over the
// cluster of blocks that share a key head, always in the same order. Pairs that are masked are skipped one by one.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/backward/direct.h"
#include "cuda/hopper/backward/stores.cuh"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/vectors.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::hopper {

template <class Element_, int HeadDim, int Rows>
struct DirectBackwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRows = Rows;
  static constexpr int kColumns = 8;  // of a thread
  static constexpr int kLanes = HeadDim / kColumns;
  static constexpr int kKeys = 32 / kLanes;  // of one load of a warp
  static constexpr int kLoads = Rows == 1 ? 4 : 2;
  static constexpr int kWarps = Rows <= 2 ? 16 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = kLoads * kKeys;
  static constexpr int kBlockKeys = kWarps * kWarpKeys;
  static constexpr int kTeams = kWarps * kKeys;  // of kLanes threads, with separate sums
};

template <class C>
struct DirectBackwardStorage {
  float grad_q[C::kTeams][C::kRows][C::kHeadDim];
  float block_grad_q[C::kRows][C::kHeadDim];
};

template <class C>
__device__ __forceinline__ float team_sum(float x) {
#pragma unroll
  for (int step = 1; step < C::kLanes; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The rows of one key head: row r is query r / group of head r % group of the group.
template <class C>
class DirectGradients {
 public:
  using Element = typename C::Element;

  __device__ __forceinline__ DirectGradients(const BackwardParams& p, int entry, int kv_head)
      : p_(p),
        sequence_(p.rule.sequence(entry)),
        entry_(entry),
        kv_head_(kv_head),
        column_(static_cast<int>(threadIdx.x) % C::kLanes * C::kColumns),
        team_(static_cast<int>(threadIdx.x) / C::kLanes) {
    const int group = p.rule.group(), rows = group * p.rule.q_len;
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const bool exists = r < rows;
      const int query = exists ? r / group : 0, head = kv_head * group + (exists ? r % group : 0);
      float out[C::kColumns];
      load_row(p.q, head, query, p.rule.head_dim, q_[r]);
      load_row(p.grad_out, head, query, p.rule.value_dim, grad_out_[r]);
      load_row(p.out, head, query, p.rule.value_dim, out);
      const float lse = p.lse(entry, head, query);
      const float grad_lse = p.grad_lse ? p.grad_lse(entry, head, query) : 0.f;
      delta_[r] = team_sum<C>(dot_of_eight(out, grad_out_[r])) - grad_lse;
      negative_lse_[r] = -kLog2e * lse;
      const Range keys = p.rule.keys_of(sequence_, query);
      seen_[r] = exists && lse != -INFINITY ? keys : Range{0, 0};
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) grad_q_[r][c] = 0.f;
    }
  }

  // The keys [begin, end).
  __device__ __forceinline__ void run(int begin, int end) {
    const int own = begin + static_cast<int>(threadIdx.x) / 32 * C::kWarpKeys + team_ % C::kKeys;
#pragma unroll 1
    for (int first = own; first - team_ % C::kKeys < end; first += C::kBlockKeys) step(first, end);
  }

  __device__ __forceinline__ void store(DirectBackwardStorage<C>& shared) const {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      auto* to = reinterpret_cast<float4*>(&shared.grad_q[team_][r][column_]);
      to[0] = make_float4(grad_q_[r][0], grad_q_[r][1], grad_q_[r][2], grad_q_[r][3]);
      to[1] = make_float4(grad_q_[r][4], grad_q_[r][5], grad_q_[r][6], grad_q_[r][7]);
    }
  }

 private:
  __device__ __forceinline__ void load_row(const DeviceTensor& tensor, int head, int row, int columns,
                                           float (&x)[C::kColumns]) const {
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (column_ < columns) vector = ptx::load_once(row_of<Element>(tensor, entry_, head, row) + column_);
    unpack_vector<Element>(vector, x);
  }

  // Load i is of the key first + i kKeys.
  __device__ __forceinline__ void step(int first, int end) {
    uint4 k[C::kLoads], v[C::kLoads];
    load(p_.k, p_.rule.head_dim, first, end, k);
    load(p_.v, p_.rule.value_dim, first, end, v);
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      const int key = first + i * C::kKeys;
      float grad_k[C::kColumns] = {}, grad_v[C::kColumns] = {};
      pair_with_rows(key, k[i], v[i], grad_k, grad_v);
      if (key >= end) continue;
      store_row(p_.grad_k, key, p_.rule.head_dim, grad_k);
      store_row(p_.grad_v, key, p_.rule.value_dim, grad_v);
    }
  }

  // Vectors past the end of keys or columns are zeros.
  __device__ __forceinline__ void load(const DeviceTensor& tensor, int columns, int first, int end,
                                       uint4 (&vectors)[C::kLoads]) const {
    const Element* from = row_of<Element>(tensor, entry_, kv_head_, first) + column_;
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (first + i * C::kKeys < end && column_ < columns) {
        vectors[i] = ptx::load_once(from + i * C::kKeys * tensor.row_stride);
      }
    }
  }

  // weight = 2^(s - lse); gradient of the score = weight (grad_out . v - delta).
  __device__ __forceinline__ void pair_with_rows(int key, const uint4& k, const uint4& v, float (&grad_k)[C::kColumns],
                                                 float (&grad_v)[C::kColumns]) {
    float k_row[C::kColumns], v_row[C::kColumns], score[C::kRows], grad_weight[C::kRows];
    unpack_vector<Element>(k, k_row);
    unpack_vector<Element>(v, v_row);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      score[r] = dot_of_eight(q_[r], k_row);
      grad_weight[r] = dot_of_eight(grad_out_[r], v_row);
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      score[r] = team_sum<C>(score[r]);
      grad_weight[r] = team_sum<C>(grad_weight[r]);
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      if (key < seen_[r].begin || key >= seen_[r].end) continue;
      const float weight = ptx::exp2_approximate(fmaf(score[r], p_.scale_log2, negative_lse_[r]));
      const float grad_score = weight * (grad_weight[r] - delta_[r]);
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) {
        grad_v[c] = fmaf(weight, grad_out_[r][c], grad_v[c]);
        grad_k[c] = fmaf(grad_score, q_[r][c], grad_k[c]);
        grad_q_[r][c] = fmaf(grad_score, k_row[c], grad_q_[r][c]);
      }
    }
    // The gradient of a logit is that of the score over the scale.
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) grad_k[c] *= p_.rule.scale;
  }

  __device__ __forceinline__ void store_row(const DeviceTensor& tensor, int key, int columns,
                                            const float (&x)[C::kColumns]) const {
    if (!tensor.data || column_ >= columns) return;
    *reinterpret_cast<uint4*>(row_of<Element>(tensor, entry_, kv_head_, key) + column_) = pack_vector<Element>(x);
  }

  const BackwardParams& p_;
  const Sequence sequence_;
  const int entry_, kv_head_, column_, team_;
  float q_[C::kRows][C::kColumns], grad_out_[C::kRows][C::kColumns], grad_q_[C::kRows][C::kColumns];
  float delta_[C::kRows], negative_lse_[C::kRows];
  Range seen_[C::kRows];
};

// The sum over the blocks of the cluster, in order.
__device__ __forceinline__ float cluster_sum(const float& own, int blocks) {
  float sum = 0.f;
#pragma unroll 8
  for (int i = 0; i < blocks; ++i) sum += ptx::load_cluster_float(ptx::address_in_block(ptx::shared_address(&own), i));
  return sum;
}

// The grid is [batch, kv_heads, splits]; the splits of a key head are a cluster.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    direct_backward_kernel(const __grid_constant__ BackwardParams p, const __grid_constant__ DirectSplit split) {
  using Element = typename C::Element;
  __shared__ DirectBackwardStorage<C> shared;
  const int rank = static_cast<int>(blockIdx.x) % split.splits, plane = static_cast<int>(blockIdx.x) / split.splits;
  const int entry = plane / p.rule.kv_heads, kv_head = plane % p.rule.kv_heads;
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  {
    DirectGradients<C> gradients(p, entry, kv_head);
    gradients.run(rank * split.part_keys, min((rank + 1) * split.part_keys, p.rule.kv_len));
    gradients.store(shared);
  }
  if (!p.grad_q.data) return;
  __syncthreads();
  const int group = p.rule.group(), count = group * p.rule.q_len * p.rule.head_dim;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += C::kThreads) {
    const int row = i / p.rule.head_dim, column = i % p.rule.head_dim;
    float sum = 0.f;
#pragma unroll 8
    for (int team = 0; team < C::kTeams; ++team) sum += shared.grad_q[team][row][column];
    shared.block_grad_q[row][column] = sum;
  }
  ptx::cluster_sync();
#pragma unroll 1
  for (int i = rank * C::kThreads + static_cast<int>(threadIdx.x); i < count; i += split.splits * C::kThreads) {
    const int row = i / p.rule.head_dim, column = i % p.rule.head_dim;
    const float sum = cluster_sum(shared.block_grad_q[row][column], split.splits);
    row_of<Element>(p.grad_q, entry, kv_head * group + row % group, row / group)[column] =
        static_cast<Element>(sum * p.rule.scale);
  }
  ptx::cluster_sync();  // other blocks load from this one's shared memory until here
}

}  // namespace rootdk::cuda::hopper
