#pragma once

// Gradients that are sums of the gradient by the logits: the bias (over its broadcast dimensions), and, by distance,
// the relative table and the ALiBi slopes. A block adds up, element by element and in a fixed order, all tiles with
// the same target, and only then reduces inside the tile. Nothing is added with atomics.

#include "cuda/portable/backward_tile.h"
#include "cuda/portable/tile_sum.h"

namespace rootdk::cuda::portable {

// Tiles [kOwned x kStream] whose corners have the same distance share an offset; the offset of row tile a and key
// tile c is ratio * a - c, counted from the smallest.
template <class Compute>
struct DistanceLayout {
  static constexpr int kOwned = TileShape<Compute>::kOwned, kStream = TileShape<Compute>::kStream;
  static constexpr int kRatio = kOwned / kStream;
  static constexpr int kDiagonals = kOwned + kStream - 1;
  __host__ __device__ static int offsets(int row_tiles, int key_tiles) {
    return row_tiles == 0 || key_tiles == 0 ? 0 : kRatio * (row_tiles - 1) + key_tiles;
  }
};

// Adds the gradient by the logits of one tile to `sum`.
template <class Compute, bool Additive>
__device__ void add_logit_gradients(WarpTile<TileShape<Compute>::kStream / 8>& sum, const BackwardArguments& args,
                                    const HeadRule& head, int first_row, int first_key) {
  using Shape = TileShape<Compute>;
  constexpr int kStream = Shape::kStream, N = kStream / 8;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const LogitRule& rule = args.rule;
  const Sequence& sequence = head.sequence;
  const Range rows{first_row, min(first_row + Shape::kOwned, sequence.q_len)};
  const Range tile_keys{first_key, min(first_key + kStream, sequence.kv_visible)};
  if (rows.empty() || tile_keys.empty()) return;
  const Range keys = rule.keys_of(rows, sequence);
  if (tile_keys.end <= keys.begin || tile_keys.begin >= keys.end || head.block_mask_drops(rows, tile_keys)) return;

  const BackwardShared<Compute, kStream> shared(args);
  Compute* const q_tile = reinterpret_cast<Compute*>(shared_memory);
  Compute* const do_tile = q_tile + shared.owned_value();
  Compute* const k_tile = q_tile + shared.stream_head(0);
  Compute* const v_tile = q_tile + shared.stream_value(0);
  float* const vector = reinterpret_cast<float*>(shared_memory + shared.vector_bytes_at());
  const int kv_head = head.head / rule.group();
  __syncthreads();  // all warps are done with the last tile
  load_tile(q_tile, shared.head_pitch, Shape::kOwned, args.head_columns,
            {args.q, sequence.entry, head.head, sequence.q_begin + first_row, sequence.q_len - first_row});
  load_tile(do_tile, shared.value_pitch, Shape::kOwned, args.value_columns,
            {args.grad_out, sequence.entry, head.head, sequence.q_begin + first_row, sequence.q_len - first_row});
  load_tile(k_tile, shared.head_pitch, kStream, args.head_columns,
            {args.k, sequence.entry, kv_head, sequence.kv_begin + first_key, sequence.kv_visible - first_key});
  load_tile(v_tile, shared.value_pitch, kStream, args.value_columns,
            {args.v, sequence.entry, kv_head, sequence.kv_begin + first_key, sequence.kv_visible - first_key});
  if constexpr (Additive) load_vector(vector, shared.vector_length, rule, head.head);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();

  const int warp_row = 16 * warp_index();
  WarpTile<N> s, dp;  // [16 queries of the warp, kStream keys]
  FeatureTile<N> features;
  clear<N>(s);
  clear<N>(dp);
  add_scores<Compute, N, Additive>(s, q_tile + warp_row * shared.head_pitch, k_tile, shared.head_pitch, vector,
                                   rule.head_dim);
  add_rows_by_rows<Compute, N>(dp, do_tile + warp_row * shared.value_pitch, v_tile, shared.value_pitch,
                               round_up(rule.value_dim, kDepthStep));
  const RowTerms terms[2] = {load_terms(args.terms, head, first_row + warp_row + fragment_row(0)),
                             load_terms(args.terms, head, first_row + warp_row + fragment_row(2))};
  to_gradients<N>(s, dp, features, head, TileCorner<Rows::queries>{first_row + warp_row, first_key},
                  rule.ranges_keep({first_row, first_row + Shape::kOwned}, {first_key, first_key + kStream}, sequence),
                  [&](int, int e) { return terms[e / 2]; });
  for_each_element<N>([&](int n, int e) { sum[n][e] += dp[n][e]; });
}

// Which tiles a block of the bias gradient adds up: one, or all of a dimension that the bias repeats.
struct BiasElement {
  int index[4] = {};  // batch, head, row tile, key tile of the result

  __device__ static BiasElement of(const TileSumArguments& args) {
    const int counts[4] = {args.bias_shape[0], args.bias_shape[1], args.bias_shape[2] == 1 ? 1 : args.row_tiles,
                           args.bias_shape[3] == 1 ? 1 : args.key_tiles};
    BiasElement element;
    std::int64_t rest = blockIdx.x;
    for (int dimension = 3; dimension >= 0; --dimension) {
      element.index[dimension] = static_cast<int>(rest % counts[dimension]);
      rest /= counts[dimension];
    }
    return element;
  }
  __device__ Range sources(const TileSumArguments& args, int dimension, int count) const {
    return args.bias_shape[dimension] == 1 ? Range{0, count} : Range{index[dimension], index[dimension] + 1};
  }
};

template <class Compute, bool Additive>
__global__ void __launch_bounds__(TileShape<Compute>::kThreads)
    tile_sum_kernel(const __grid_constant__ TileSumArguments args) {
  using Shape = TileShape<Compute>;
  using Distances = DistanceLayout<Compute>;
  constexpr int kOwned = Shape::kOwned, kStream = Shape::kStream, N = kStream / 8;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const LogitRule& rule = args.backward.rule;
  WarpTile<N> sum;
  clear<N>(sum);

  if (args.kind == TileSum::bias) {
    const BiasElement element = BiasElement::of(args);
    const Range batch = element.sources(args, 0, rule.batch), heads = element.sources(args, 1, rule.heads);
    const Range row_tiles = element.sources(args, 2, args.row_tiles),
                key_tiles = element.sources(args, 3, args.key_tiles);
    for (int b = batch.begin; b < batch.end; ++b) {
      for (int h = heads.begin; h < heads.end; ++h) {
        const HeadRule head(rule, rule.sequence(b), h);
        for (int row = row_tiles.begin; row < row_tiles.end; ++row) {
          for (int key = key_tiles.begin; key < key_tiles.end; ++key) {
            add_logit_gradients<Compute, Additive>(sum, args.backward, head, row * kOwned, key * kStream);
          }
        }
      }
    }
  } else {
    const int offsets = Distances::offsets(args.row_tiles, args.key_tiles);
    const BlockWork work = BlockWork::of(rule.heads, offsets, 1);
    const HeadRule head(rule, rule.sequence(work.sequence), work.head);
    const int offset = work.tile - (args.key_tiles - 1);
    for (int row = 0; row < args.row_tiles; ++row) {
      const int key = Distances::kRatio * row - offset;
      if (key < 0 || key >= args.key_tiles) continue;
      add_logit_gradients<Compute, Additive>(sum, args.backward, head, row * kOwned, key * kStream);
    }
  }

  __syncthreads();  // the sum [kOwned, kStream] reuses the memory of the tiles
  constexpr int kPitch = kStream + 1;
  float* const tile = reinterpret_cast<float*>(shared_memory);
  for_each_element<N>(
      [&](int n, int e) { tile[(16 * warp_index() + fragment_row(e)) * kPitch + fragment_column(n, e)] = sum[n][e]; });
  __syncthreads();

  if (args.kind == TileSum::bias) {
    const BiasElement element = BiasElement::of(args);
    const bool one_row = args.bias_shape[2] == 1, one_key = args.bias_shape[3] == 1;
    const int rows = one_row ? 1 : kOwned, keys = one_key ? 1 : kStream;
    for (int index = static_cast<int>(threadIdx.x); index < rows * keys; index += Shape::kThreads) {
      const int row = index / keys, key = index % keys;
      float total = 0.0f;
      for (int r = row; r < (one_row ? kOwned : row + 1); ++r) {
        for (int c = key; c < (one_key ? kStream : key + 1); ++c) total += tile[r * kPitch + c];
      }
      const int i = element.index[2] * kOwned + row, j = element.index[3] * kStream + key;
      if (i >= args.bias_shape[2] || j >= args.bias_shape[3]) continue;
      store_float(args.grad_bias.data, args.grad_bias.dtype,
                  args.grad_bias.offset(element.index[0], element.index[1], i, j), total);
    }
  } else {
    float* const to = args.distance_partial + static_cast<std::int64_t>(blockIdx.x) * Distances::kDiagonals;
    for (int diagonal = static_cast<int>(threadIdx.x); diagonal < Distances::kDiagonals; diagonal += Shape::kThreads) {
      const int difference = diagonal - (kStream - 1);  // row - key inside the tile
      float total = 0.0f;
      for (int row = max(0, difference); row < min(kOwned, kStream + difference); ++row) {
        total += tile[row * kPitch + row - difference];
      }
      to[diagonal] = total;
    }
  }
}

}  // namespace rootdk::cuda::portable
