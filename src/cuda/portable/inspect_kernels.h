#pragma once

// Statistics that need the finished lse: column_mass on tiles; the pooled map and chosen weights plainly, one weight at
// a time.

#include "cuda/portable/backward_tile.h"
#include "cuda/portable/block_reduce.h"
#include "cuda/portable/inspect.h"

namespace rootdk::cuda::portable {

// A block owns a tile of keys; queries stream past it, as in the gradient of k.
template <class Compute, bool Additive>
__global__ void __launch_bounds__(TileShape<Compute>::kThreads)
    column_mass_kernel(const __grid_constant__ InspectArguments args) {
  using Shape = TileShape<Compute>;
  constexpr int kStream = Shape::kStream, N = kStream / 8;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const LogitRule& rule = args.rule;
  const BlockWork work = BlockWork::of(rule.heads, args.key_blocks, 1);
  const HeadRule head(rule, rule.sequence(work.sequence), work.head);
  const Sequence& sequence = head.sequence;
  const int first_key = work.tile * Shape::kOwned;
  if (first_key >= sequence.kv_len) return;
  const Range keys{first_key, min(first_key + Shape::kOwned, sequence.kv_len)};
  const Range queries = rule.queries_of(keys, sequence);

  const int columns = round_up(rule.head_dim, kDepthStep), pitch = pitch_of<Compute>(columns);
  Compute* const k_tile = reinterpret_cast<Compute*>(shared_memory);
  Compute* const q_tile = k_tile + Shape::kOwned * pitch;
  float* const vector = reinterpret_cast<float*>(q_tile + kStream * pitch);
  load_tile(k_tile, pitch, Shape::kOwned, columns,
            {args.k, sequence.entry, work.head / rule.group(), sequence.kv_begin + first_key,
             sequence.kv_visible - first_key});
  if constexpr (Additive) load_vector(vector, columns, rule, work.head);
  ptx::copy_async_commit();

  const int warp_row = 16 * warp_index();
  float mass[2] = {0.0f, 0.0f};  // of the lane's two keys
  for (int query = queries.begin / kStream * kStream; query < queries.end; query += kStream) {
    __syncthreads();  // all warps are done with the last queries
    load_tile(q_tile, pitch, kStream, columns,
              {args.q, sequence.entry, work.head, sequence.q_begin + query, sequence.q_len - query});
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();

    WarpTile<N> s;  // [16 keys of the warp, kStream queries]
    clear<N>(s);
    add_scores<Compute, N, Additive>(s, k_tile + warp_row * pitch, q_tile, pitch, vector, rule.head_dim);
    const TileCorner<Rows::keys> at{query, first_key + warp_row};
    FeatureTile<N> features;
    to_logits<N>(s, features, head, at, false);
    for_each_element<N>([&](int n, int e) {
      const int i = at.query(n, e);
      const float lse = i < sequence.q_len ? args.lse(sequence.entry, head.head, sequence.q_begin + i) : -INFINITY;
      mass[e / 2] += weight_of(s[n][e], lse);
    });
  }
  ptx::copy_async_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(mass[half]);
    const int j = first_key + warp_row + fragment_row(2 * half);
    if (lane_index() % 4 == 0 && j < sequence.kv_len) {
      args.column_mass(sequence.entry, head.head, sequence.kv_begin + j) = total;
    }
  }
}

template <class T>
__device__ float score_of(const T* q, const T* k, const InspectArguments& args, int head) {
  float sum = 0.0f;
  if (args.rule.additive_v) {
    for (int d = 0; d < args.rule.head_dim; ++d) {
      sum = fmaf(args.rule.additive_v(head, d), tanhf(static_cast<float>(q[d]) + static_cast<float>(k[d])), sum);
    }
  } else {
    for (int d = 0; d < args.rule.head_dim; ++d) sum = fmaf(static_cast<float>(q[d]), static_cast<float>(k[d]), sum);
  }
  return sum;
}

// The weight of key j in row i of one head, from memory.
template <class T>
__device__ float plain_weight(const InspectArguments& args, const HeadRule& head, int i, int j) {
  const Sequence& s = head.sequence;
  if (!head.keeps(i, j)) return 0.0f;
  const T* q = static_cast<const T*>(args.q.data) + args.q.offset(s.entry, head.head, s.q_begin + i);
  const T* k =
      static_cast<const T*>(args.k.data) + args.k.offset(s.entry, head.head / args.rule.group(), s.kv_begin + j);
  const float logit = head.unmasked(score_of(q, k, args, head.head), i, j);
  return weight_of(logit, args.lse(s.entry, head.head, s.q_begin + i));
}

// One block a cell: the mean over its queries of the summed weight of its keys.
template <class T>
__global__ void pooled_map_kernel(const __grid_constant__ InspectArguments args) {
  const BlockWork work = BlockWork::of(args.rule.heads, args.map_rows, args.map_columns);
  const HeadRule head(args.rule, args.rule.sequence(work.sequence), work.head);
  const auto bound = [](int index, int length, int cells) {
    return static_cast<int>(static_cast<std::int64_t>(index) * length / cells);
  };
  const Range rows{bound(work.tile, args.rule.q_len, args.map_rows),
                   bound(work.tile + 1, args.rule.q_len, args.map_rows)};
  const Range keys{bound(work.part, args.rule.kv_len, args.map_columns),
                   bound(work.part + 1, args.rule.kv_len, args.map_columns)};
  float sum = 0.0f;
  for (int i = rows.begin; i < rows.end; ++i) {
    for (int j = keys.begin + static_cast<int>(threadIdx.x); j < keys.end; j += kRowThreads) {
      sum += plain_weight<T>(args, head, i, j);
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    args.pooled_map(work.sequence, work.head, work.tile, work.part) =
        rows.empty() ? 0.0f : sum / static_cast<float>(rows.end - rows.begin);
  }
}

// One block a chosen row. Keys of other packed sequences have weight 0.
template <class T>
__global__ void weights_kernel(const __grid_constant__ InspectArguments args) {
  const BlockWork work = BlockWork::of(args.rule.heads, args.chosen_rows, 1);
  const int row = args.weight_rows ? args.weight_rows(work.tile) : work.tile;
  int index = work.sequence;
  if (args.rule.q_starts) {
    index = 0;
    while (index + 1 < args.rule.batch && args.rule.q_starts(index + 1) <= row) ++index;
  }
  const HeadRule head(args.rule, args.rule.sequence(index), work.head);
  const Sequence& s = head.sequence;
  for (int key = static_cast<int>(threadIdx.x); key < args.weight_keys; key += kRowThreads) {
    const int i = row - s.q_begin, j = key - s.kv_begin;
    args.weights(work.sequence, work.head, work.tile, key) =
        i >= 0 && j >= 0 ? plain_weight<T>(args, head, i, j) : 0.0f;
  }
}

}  // namespace rootdk::cuda::portable
