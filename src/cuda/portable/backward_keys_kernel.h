#pragma once

// Gradients of k and v. A block owns a tile of keys of one key head and `Columns` columns of their gradients; the
// queries of every head of the group stream past it, head after head, in a fixed order. Tiles are transposed: keys are
// the rows, queries the columns.

#include "cuda/portable/backward_tile.h"

namespace rootdk::cuda::portable {

template <class Compute, int Columns, bool Additive>
__global__ void __launch_bounds__(TileShape<Compute>::kThreads)
    backward_keys_kernel(const __grid_constant__ BackwardArguments args) {
  using Shape = TileShape<Compute>;
  constexpr int kStream = kBackwardStream<Compute, Columns>, N = kStream / 8;
  extern __shared__ __align__(16) unsigned char shared_memory[];

  const LogitRule& rule = args.rule;
  const BlockWork work = BlockWork::of(rule.kv_heads, args.blocks, args.parts);
  const Sequence sequence = rule.sequence(work.sequence);
  const int first_key = work.tile * Shape::kOwned;
  if (first_key >= sequence.kv_len) return;
  const Range keys{first_key, min(first_key + Shape::kOwned, sequence.kv_len)};
  const Range queries = rule.queries_of(keys, sequence);
  const int first_query = queries.begin / kStream * kStream;
  const int tiles = queries.empty() ? 0 : (queries.end - first_query + kStream - 1) / kStream;
  const int steps = tiles * rule.group();

  const BackwardShared<Compute, kStream> shared(args);
  Compute* const tile_memory = reinterpret_cast<Compute*>(shared_memory);
  Compute* const k_tile = tile_memory;
  Compute* const v_tile = tile_memory + shared.owned_value();
  float* const vectors = reinterpret_cast<float*>(shared_memory + shared.vector_bytes_at());
  float* const kept_scores = reinterpret_cast<float*>(shared_memory + shared.scores_bytes_at());

  const auto head_of = [&](int step) { return work.head * rule.group() + step / tiles; };
  const auto query_of = [&](int step) { return first_query + step % tiles * kStream; };
  const auto load_step = [&](int step) {
    const int stage = step % args.stages, head = head_of(step), query = query_of(step);
    load_tile(tile_memory + shared.stream_head(stage), shared.head_pitch, kStream, args.head_columns,
              {args.q, sequence.entry, head, sequence.q_begin + query, sequence.q_len - query});
    load_tile(tile_memory + shared.stream_value(stage), shared.value_pitch, kStream, args.value_columns,
              {args.grad_out, sequence.entry, head, sequence.q_begin + query, sequence.q_len - query});
    if constexpr (Additive) load_vector(vectors + stage * shared.vector_length, shared.vector_length, rule, head);
    ptx::copy_async_commit();
  };

  // Keys past the visible length read as zero, whatever the padding holds.
  load_tile(k_tile, shared.head_pitch, Shape::kOwned, args.head_columns,
            {args.k, sequence.entry, work.head, sequence.kv_begin + first_key, sequence.kv_visible - first_key});
  load_tile(v_tile, shared.value_pitch, Shape::kOwned, args.value_columns,
            {args.v, sequence.entry, work.head, sequence.kv_begin + first_key, sequence.kv_visible - first_key});
  ptx::copy_async_commit();

  WarpTile<Columns / 8> dk, dv;  // [16 keys of the warp, Columns]
  float along[2];
  const int warp_row = 16 * warp_index();
  const int first_column = work.part * Columns;
  // One pass over the queries; a second, careful one where the first met NaN or infinity.
  for (bool careful = false;; careful = true) {
    clear<Columns / 8>(dk);
    clear<Columns / 8>(dv);
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

      const int stage = step % args.stages, query = query_of(step);
      const Compute* q_tile = tile_memory + shared.stream_head(stage);
      const Compute* do_tile = tile_memory + shared.stream_value(stage);
      const float* vector = vectors + stage * shared.vector_length;
      const HeadRule head(rule, sequence, head_of(step));
      const Range rows{query, min(query + kStream, sequence.q_len)};
      if (!head.block_mask_drops(rows, keys)) {
        WarpTile<N> s, dp;  // [16 keys of the warp, kStream queries]
        FeatureTile<N> features;
        clear<N>(s);
        clear<N>(dp);
        add_scores<Compute, N, Additive>(s, k_tile + warp_row * shared.head_pitch, q_tile, shared.head_pitch, vector,
                                         rule.head_dim);
        if (shared.keeps_scores) keep_scores<N>(kept_scores, s);
        add_rows_by_rows<Compute, N>(dp, v_tile + warp_row * shared.value_pitch, do_tile, shared.value_pitch,
                                     round_up(rule.value_dim, kDepthStep));

        RowTerms terms[N][2];
#pragma unroll
        for (int n = 0; n < N; ++n) {
          terms[n][0] = load_terms(args.terms, head, query + fragment_column(n, 0));
          terms[n][1] = load_terms(args.terms, head, query + fragment_column(n, 1));
        }
        const Range tile_rows{query, query + kStream}, tile_keys{first_key, first_key + Shape::kOwned};
        to_gradients<N>(s, dp, features, head, TileCorner<Rows::keys>{query, first_key + warp_row},
                        rule.ranges_keep(tile_rows, tile_keys, sequence),
                        [&](int n, int e) { return terms[n][e % 2]; });
        if (first_column < args.value_columns) {
          add_stream<Compute, Columns / 8, N>(dv, s, do_tile + first_column, shared.value_pitch, careful);
        }
        through_slope<N>(dp, features, head);
        if (shared.keeps_scores) sum_along<Compute, N>(along, kept_scores, dp);
        if (first_column < args.head_columns) {
          if constexpr (Additive) {
            float by_vector[Columns / 8][2] = {};  // the gradient of the vector is the query kernel's work
            add_additive_gradients<Columns / 8, N>(dk, by_vector, dp, k_tile + warp_row * shared.head_pitch, q_tile,
                                                   shared.head_pitch, vector, first_column);
          } else {
            add_stream<Compute, Columns / 8, N>(dk, dp, q_tile + first_column, shared.head_pitch, careful);
          }
        }
      }
      __syncthreads();  // all warps are done with this stage
      if (args.stages == 1 && step + 1 < steps) load_step(step + 1);
    }
    ptx::copy_async_wait<0>();
    if (careful || !__syncthreads_or(any_not_finite<Columns / 8>(dk) || any_not_finite<Columns / 8>(dv))) break;
  }

  int exponent[2] = {0, 0};
  if (shared.keeps_scores && first_column < args.head_columns) {
    float inverse_norm[2] = {0.0f, 0.0f};
    for (int half = 0; half < 2; ++half) {
      const int key = first_key + warp_row + fragment_row(2 * half);
      if (key >= sequence.kv_visible) continue;
      inverse_norm[half] = rule.k_inverse_norm(sequence.entry, work.head, sequence.kv_begin + key);
      exponent[half] = static_cast<int>(args.k_exponent(sequence.entry, work.head, sequence.kv_begin + key));
    }
    project_out<Compute, Columns / 8>(dk, along, inverse_norm, k_tile + warp_row * shared.head_pitch, shared.head_pitch,
                                      work.part);
  }
  multiply<Columns / 8>(dk, rule.scale);
  if (shared.keeps_scores) scale_back<Columns / 8>(dk, exponent);
  const int row = sequence.kv_begin + first_key + warp_row, valid_rows = sequence.kv_len - first_key - warp_row;
  if (args.grad_k) {
    store_gradient<Columns / 8>(args.grad_k, dk, args.grad_k.offset(sequence.entry, work.head, row), valid_rows,
                                work.part);
  }
  if (args.grad_v) {
    store_gradient<Columns / 8>(args.grad_v, dv, args.grad_v.offset(sequence.entry, work.head, row), valid_rows,
                                work.part);
  }
}

}  // namespace rootdk::cuda::portable
