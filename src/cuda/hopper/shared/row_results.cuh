#pragma once

// From the softmax sums of a row to its results (lse, statistics, output factor), and their stores to memory.

#include <cmath>

#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

struct RowResult {
  float factor;  // turns the unnormalised output into the output
  float lse, max_logit, max_weight, entropy, sum_p2;
};

// Sums over the whole row, relative to the maximum m, in units of log2.
struct RowSums {
  float m, l, a, b;
};

// A NaN among the logits makes everything NaN; a row with no key has l = 0.
__device__ __forceinline__ RowResult row_result(const RowSums& sums) {
  const bool empty = sums.l == 0.f;
  const float log2_l = ptx::log2_approximate(sums.l);
  RowResult result;
  result.factor = empty ? 0.f : ptx::reciprocal_approximate(sums.l);
  result.lse = kLn2 * (sums.m + log2_l);
  result.max_logit = sums.l == sums.l ? kLn2 * sums.m : NAN;
  result.max_weight = result.factor;
  result.entropy = empty ? 0.f : kLn2 * fmaf(-sums.a, result.factor, log2_l);  // ln l - sum y e^y / l
  result.sum_p2 = sums.b * result.factor * result.factor;
  return result;
}

// The same with a sink, in units of log2, added to the denominator.
__device__ __forceinline__ RowResult row_result(const RowSums& sums, float sink_log2) {
  if (sums.l != sums.l || sink_log2 == -INFINITY) return row_result(sums);
  const bool empty = sums.l == 0.f;
  const float top = empty ? sink_log2 : fmaxf(sums.m, sink_log2);
  const float share = empty ? 0.f : ptx::exp2_approximate(sums.m - top);  // 1 unless the sink is larger
  const float total = fmaf(sums.l, share, ptx::exp2_approximate(sink_log2 - top));
  const float log2_total = ptx::log2_approximate(total);
  RowResult result;
  result.factor = __fdividef(share, total);
  result.lse = kLn2 * (top + log2_total);
  result.max_logit = empty ? -INFINITY : kLn2 * sums.m;
  result.max_weight = result.factor;
  // sum p (ln L - y ln 2) with L the denominator relative to m
  const float log2_denominator = empty ? 0.f : log2_total + (top - sums.m);
  result.entropy = kLn2 * result.factor * fmaf(sums.l, log2_denominator, -sums.a);
  result.sum_p2 = sums.b * result.factor * result.factor;
  return result;
}

__device__ __forceinline__ void store_row(const DeviceTensor& tensor, int batch, int head, int row, float value) {
  if (!tensor.data) return;
  static_cast<float*>(tensor.data)[batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride] =
      value;
}

__device__ __forceinline__ void store_row_results(const ForwardParams& p, const RowResult& result, int batch, int head,
                                                  int row) {
  store_row(p.row_values[kLse], batch, head, row, result.lse);
  store_row(p.row_values[kMaxLogit], batch, head, row, result.max_logit);
  store_row(p.row_values[kMaxWeight], batch, head, row, result.max_weight);
  store_row(p.row_values[kEntropy], batch, head, row, result.entropy);
  store_row(p.row_values[kSumP2], batch, head, row, result.sum_p2);
}

__device__ __forceinline__ float sink_of(const ForwardParams& p, int head) {
  return p.sinks.data ? kLog2e * p.sinks.data[head * p.sinks.stride] : -INFINITY;
}

template <class Element>
__device__ __forceinline__ Element* output_row(const ForwardParams& p, int batch, int head, int row) {
  return static_cast<Element*>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride +
         row * p.out.row_stride;
}

// The index of a query tile's first row among the partial results of one part (decode).
__device__ __forceinline__ std::int64_t partial_rows(const ForwardParams& p, int split, int tile, int kv_head) {
  return ((static_cast<std::int64_t>(split) * p.query_tiles + tile) * (p.heads / p.group) + kv_head) * p.tile_rows;
}

}  // namespace rootdk::cuda::hopper
