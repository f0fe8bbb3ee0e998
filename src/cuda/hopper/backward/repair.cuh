#pragma once

// The products of the backward kernel multiply weights of 0 with masked rows, and 0 times infinity is NaN. If that may
// have happened, a row's gradient is computed again, pair by pair, over the unmasked pairs. This is slow and very rare.
// One warp has a row; lane l has the columns l, l + 32, ...

#include <cmath>

#include "cuda/hopper/backward/stores.cuh"
#include "cuda/hopper/backward/tiles.cuh"

namespace rootdk::cuda::hopper {

// A row spread over the warp.
template <class Element, int HeadDim>
struct WarpRow {
  float values[HeadDim / 32] = {};

  __device__ void load(const DeviceTensor& tensor, int entry, int head, int row, int columns) {
    const Element* source = row_of<Element>(tensor, entry, head, row);
#pragma unroll
    for (int i = 0; i < HeadDim / 32; ++i) {
      const int column = 32 * i + (threadIdx.x & 31);
      values[i] = column < columns ? static_cast<float>(source[column]) : 0.f;
    }
  }
  __device__ void store(const DeviceTensor& tensor, int entry, int head, int row, int columns, float factor) const {
    if (!tensor.data) return;
    Element* target = row_of<Element>(tensor, entry, head, row);
#pragma unroll
    for (int i = 0; i < HeadDim / 32; ++i) {
      const int column = 32 * i + (threadIdx.x & 31);
      if (column < columns) target[column] = static_cast<Element>(values[i] * factor);
    }
  }
  __device__ bool finite() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < HeadDim / 32; ++i) all = all && isfinite(values[i]);
    return __all_sync(0xffffffffu, all);
  }
  __device__ float dot(const WarpRow& other) const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < HeadDim / 32; ++i) sum = fmaf(values[i], other.values[i], sum);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
  }
  __device__ void add(float factor, const WarpRow& other) {
#pragma unroll
    for (int i = 0; i < HeadDim / 32; ++i) values[i] = fmaf(factor, other.values[i], values[i]);
  }
};

// The saved terms of a query row.
struct RepairRow {
  float lse, delta, grad_entropy;
};
// at: index of the row's delta.
__device__ inline RepairRow repair_row(const BackwardParams& p, const Sequence& s, int head, int i, std::int64_t at) {
  return {p.lse(s.entry, head, s.q_begin + i), p.delta[at], p.grad_entropy_rows ? p.grad_entropy_rows[at] : 0.f};
}

// The gradients of one query and key pair.
struct PairGradient {
  float weight;  // after dropout
  float grad_score;
  __device__ bool nothing() const { return weight == 0.f && grad_score == 0.f; }
};
__device__ inline PairGradient pair_gradient(const HeadRule& head, int i, int j, float score, float grad_weight,
                                             const RepairRow& row) {
  if (row.lse == -INFINITY || !head.keeps(i, j)) return {0.f, 0.f};
  const float log_weight = head.unmasked(score, i, j) - row.lse, weight = expf(log_weight);
  if (weight == 0.f) return {0.f, 0.f};
  const LogitRule& rule = head.rule;
  float slope = 1.f;
  if (rule.softcap != 0.f) {
    const float tanh = tanhf(score * rule.scale / rule.softcap);
    slope = 1.f - tanh * tanh;
  }
  float factor = 1.f;
  if (rule.dropout.active()) {
    const bool kept = rule.dropout.keeps(rule.dropout.word(head.sequence.index, head.head, i, j), j);
    factor = kept ? rule.dropout.keep_scale : 0.f;
  }
  const float inner = factor == 0.f ? 0.f : factor * grad_weight;
  return {weight * factor, weight * (inner - row.delta - row.grad_entropy * log_weight) * slope};
}

// Computes the gradient of query i again if it is not finite. constant: index of its delta.
template <class C>
__device__ __noinline__ void repair_query(const BackwardParams& p, const QueryTile& tile, int i,
                                          std::int64_t constant) {
  using Row = WarpRow<typename C::Element, C::kHeadDim>;
  const LogitRule& rule = p.rule;
  const Sequence& s = tile.sequence;
  const HeadRule head(rule, s, tile.head);
  const int row = s.q_begin + i, kv_head = tile.head / rule.group();
  Row q, grad_out, k, v, grad_q;
  grad_q.load(p.grad_q, s.entry, tile.head, row, rule.head_dim);
  if (grad_q.finite()) return;
  grad_q = {};
  q.load(p.q, s.entry, tile.head, row, rule.head_dim);
  grad_out.load(p.grad_out, s.entry, tile.head, row, rule.value_dim);
  const RepairRow terms = repair_row(p, s, tile.head, i, constant);
  const Range keys = rule.keys_of(s, i);
  for (int j = keys.begin; j < keys.end; ++j) {
    k.load(p.k, s.entry, kv_head, s.kv_begin + j, rule.head_dim);
    v.load(p.v, s.entry, kv_head, s.kv_begin + j, rule.value_dim);
    const PairGradient pair = pair_gradient(head, i, j, q.dot(k), grad_out.dot(v), terms);
    if (!pair.nothing()) grad_q.add(pair.grad_score, k);
  }
  grad_q.store(p.grad_q, s.entry, tile.head, row, rule.head_dim, rule.scale);
}

// Computes the gradients of key j again.
template <class C>
__device__ __noinline__ void repair_key(const BackwardParams& p, const KeyTile& tile, int j) {
  using Row = WarpRow<typename C::Element, C::kHeadDim>;
  const LogitRule& rule = p.rule;
  const Sequence s = rule.sequence(tile.sequence);
  const int key_row = s.kv_begin + j;
  Row k, v, q, grad_out, grad_k, grad_v;
  k.load(p.k, s.entry, tile.kv_head, key_row, rule.head_dim);
  v.load(p.v, s.entry, tile.kv_head, key_row, rule.value_dim);
  const Range queries = rule.queries_of({j, j + 1}, s);
  for (int h = tile.kv_head * rule.group(); h < (tile.kv_head + 1) * rule.group(); ++h) {
    const HeadRule head(rule, s, h);
    const std::int64_t constants = std::int64_t{first_query_tile<C>(p, tile.sequence, h, s.q_begin)} * C::kBlockQ;
    for (int i = queries.begin; i < queries.end; ++i) {
      const int row = s.q_begin + i;
      q.load(p.q, s.entry, h, row, rule.head_dim);
      grad_out.load(p.grad_out, s.entry, h, row, rule.value_dim);
      const PairGradient pair =
          pair_gradient(head, i, j, q.dot(k), grad_out.dot(v), repair_row(p, s, h, i, constants + i));
      if (pair.nothing()) continue;
      grad_k.add(pair.grad_score, q);
      grad_v.add(pair.weight, grad_out);
    }
  }
  grad_k.store(p.grad_k, s.entry, tile.kv_head, key_row, rule.head_dim, rule.scale);
  grad_v.store(p.grad_v, s.entry, tile.kv_head, key_row, rule.value_dim, 1.f);
}

}  // namespace rootdk::cuda::hopper
