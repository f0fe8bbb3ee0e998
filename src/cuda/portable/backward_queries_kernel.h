#pragma once

// The gradient of q, and the block's share of the gradient of the additive score's vector. A block owns a tile of
// queries and `Columns` columns of their gradient; keys and values stream past it.

#include "cuda/portable/backward_tile.h"

namespace rootdk::cuda::portable {

// Sums by_vector over the block's rows, warp after warp, and writes it to the block's part of the workspace.
template <int N>
__device__ void store_vector_gradient(float* to, float (&by_vector)[N][2], float* scratch, int first_column,
                                      const LogitRule& rule) {
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = by_vector[n][e];
      for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      if (lane_index() < 4) scratch[warp_index() * 8 * N + fragment_column(n, e)] = sum;
    }
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < 8 * N; column += static_cast<int>(blockDim.x)) {
    float sum = 0.0f;
    for (int warp = 0; warp < warps; ++warp) sum += scratch[warp * 8 * N + column];
    if (first_column + column < rule.head_dim) to[first_column + column] = sum * rule.scale;
  }
}

template <class Compute, int Columns, bool Additive>
__global__ void __launch_bounds__(TileShape<Compute>::kThreads)
    backward_queries_kernel(const __grid_constant__ BackwardArguments args) {
  using Shape = TileShape<Compute>;
  constexpr int kStream = kBackwardStream<Compute, Columns>, N = kStream / 8;
  extern __shared__ __align__(16) unsigned char shared_memory[];

  const LogitRule& rule = args.rule;
  BlockWork work = BlockWork::of(rule.heads, args.blocks, args.parts);
  work.tile = args.blocks - 1 - work.tile;  // under a causal mask the last rows have most work: begin with them
  const HeadRule head(rule, rule.sequence(work.sequence), work.head);
  const Sequence& sequence = head.sequence;
  const int first_row = work.tile * Shape::kOwned;
  const int first_column = work.part * Columns;
  float* const additive_partial =
      args.additive_partial == nullptr
          ? nullptr
          : args.additive_partial +
                ((static_cast<std::int64_t>(work.sequence) * rule.heads + work.head) * args.blocks + work.tile) *
                    rule.head_dim;
  if (first_row >= sequence.q_len) {
    if (additive_partial != nullptr) {  // a packed sequence that is shorter than the longest adds nothing
      for (int column = static_cast<int>(threadIdx.x); column < Columns; column += Shape::kThreads) {
        if (first_column + column < rule.head_dim) additive_partial[first_column + column] = 0.0f;
      }
    }
    return;
  }
  const Range rows{first_row, min(first_row + Shape::kOwned, sequence.q_len)};
  const Range keys = rule.keys_of(rows, sequence);
  const int first_key = keys.begin / kStream * kStream;
  const int steps = keys.empty() ? 0 : (keys.end - first_key + kStream - 1) / kStream;
  const int kv_head = work.head / rule.group();

  const BackwardShared<Compute, kStream> shared(args);
  Compute* const tile_memory = reinterpret_cast<Compute*>(shared_memory);
  Compute* const q_tile = tile_memory;
  Compute* const do_tile = tile_memory + shared.owned_value();
  float* const vector = reinterpret_cast<float*>(shared_memory + shared.vector_bytes_at());
  float* const kept_scores = reinterpret_cast<float*>(shared_memory + shared.scores_bytes_at());

  const auto load_step = [&](int step) {
    const int stage = step % args.stages, key = first_key + step * kStream;
    load_tile(tile_memory + shared.stream_head(stage), shared.head_pitch, kStream, args.head_columns,
              {args.k, sequence.entry, kv_head, sequence.kv_begin + key, sequence.kv_visible - key});
    load_tile(tile_memory + shared.stream_value(stage), shared.value_pitch, kStream, args.value_columns,
              {args.v, sequence.entry, kv_head, sequence.kv_begin + key, sequence.kv_visible - key});
    ptx::copy_async_commit();
  };

  load_tile(q_tile, shared.head_pitch, Shape::kOwned, args.head_columns,
            {args.q, sequence.entry, work.head, sequence.q_begin + first_row, sequence.q_len - first_row});
  load_tile(do_tile, shared.value_pitch, Shape::kOwned, args.value_columns,
            {args.grad_out, sequence.entry, work.head, sequence.q_begin + first_row, sequence.q_len - first_row});
  if constexpr (Additive) load_vector(vector, shared.vector_length, rule, work.head);
  ptx::copy_async_commit();

  const int warp_row = 16 * warp_index();
  const RowTerms terms[2] = {load_terms(args.terms, head, first_row + warp_row + fragment_row(0)),
                             load_terms(args.terms, head, first_row + warp_row + fragment_row(2))};
  WarpTile<Columns / 8> dq;  // [16 queries of the warp, Columns]
  float by_vector[Columns / 8][2];
  float along[2];
  // One pass over the keys; a second, careful one where the first met NaN or infinity.
  for (bool careful = false;; careful = true) {
    clear<Columns / 8>(dq);
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) by_vector[n][0] = by_vector[n][1] = 0.0f;
    along[0] = along[1] = 0.0f;
    if (steps > 0) load_step(0);
    for (int step = 0; step < steps; ++step) {
      if (args.stages == 2 && step + 1 < steps) {
        load_step(step + 1);
        ptx::copy_async_wait<1>();
      } else {
        ptx::copy_async_wait<0>();
      }
      __syncthreads();

      const int stage = step % args.stages, key = first_key + step * kStream;
      const Compute* k_tile = tile_memory + shared.stream_head(stage);
      const Compute* v_tile = tile_memory + shared.stream_value(stage);
      if (!head.block_mask_drops(rows, {key, min(key + kStream, sequence.kv_len)})) {
        WarpTile<N> s, dp;  // [16 queries of the warp, kStream keys]
        FeatureTile<N> features;
        clear<N>(s);
        clear<N>(dp);
        add_scores<Compute, N, Additive>(s, q_tile + warp_row * shared.head_pitch, k_tile, shared.head_pitch, vector,
                                         rule.head_dim);
        if (shared.keeps_scores) keep_scores<N>(kept_scores, s);
        add_rows_by_rows<Compute, N>(dp, do_tile + warp_row * shared.value_pitch, v_tile, shared.value_pitch,
                                     round_up(rule.value_dim, kDepthStep));
        to_gradients<N>(s, dp, features, head, TileCorner<Rows::queries>{first_row + warp_row, key},
                        rule.ranges_keep({first_row, first_row + Shape::kOwned}, {key, key + kStream}, sequence),
                        [&](int, int e) { return terms[e / 2]; });
        through_slope<N>(dp, features, head);
        if (shared.keeps_scores) sum_along<Compute, N>(along, kept_scores, dp);
        if constexpr (Additive) {
          add_additive_gradients<Columns / 8, N>(dq, by_vector, dp, q_tile + warp_row * shared.head_pitch, k_tile,
                                                 shared.head_pitch, vector, first_column);
        } else {
          add_stream<Compute, Columns / 8, N>(dq, dp, k_tile + first_column, shared.head_pitch, careful);
        }
      }
      __syncthreads();  // all warps are done with this stage
      if (args.stages == 1 && step + 1 < steps) load_step(step + 1);
    }
    ptx::copy_async_wait<0>();
    if (careful || !__syncthreads_or(any_not_finite<Columns / 8>(dq))) break;
  }

  int exponent[2] = {0, 0};
  if (shared.keeps_scores) {
    float inverse_norm[2] = {0.0f, 0.0f};
    for (int half = 0; half < 2; ++half) {
      const int i = first_row + warp_row + fragment_row(2 * half);
      if (i >= sequence.q_len) continue;
      inverse_norm[half] = rule.q_inverse_norm(sequence.entry, work.head, sequence.q_begin + i);
      exponent[half] = static_cast<int>(args.q_exponent(sequence.entry, work.head, sequence.q_begin + i));
    }
    project_out<Compute, Columns / 8>(dq, along, inverse_norm, q_tile + warp_row * shared.head_pitch, shared.head_pitch,
                                      work.part);
  }
  multiply<Columns / 8>(dq, rule.scale);
  if (shared.keeps_scores) scale_back<Columns / 8>(dq, exponent);
  if (args.grad_q) {
    store_gradient<Columns / 8>(args.grad_q, dq,
                                args.grad_q.offset(sequence.entry, work.head, sequence.q_begin + first_row + warp_row),
                                sequence.q_len - first_row - warp_row, work.part);
  }
  if constexpr (Additive) {
    if (additive_partial != nullptr) {
      store_vector_gradient<Columns / 8>(additive_partial, by_vector, reinterpret_cast<float*>(tile_memory),
                                         first_column, rule);
    }
  }
}

}  // namespace rootdk::cuda::portable
