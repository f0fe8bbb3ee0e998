#pragma once

// attend over the pages of a cache, for any type of cache. A block owns up to 16 rows, which share a key head, and a
// chunk of their keys. Keys are cut at fixed positions and every part is merged in order, so that a token's bits do not
// depend on what else is in its call. Plain float arithmetic is enough: memory bandwidth limits decoding.

#include <cstdint>

#include "cuda/common/logit_rule.h"
#include "cuda/common/row_statistics.h"

namespace rootdk::cuda::portable {

inline constexpr int kAttendThreads = 128, kAttendWarps = kAttendThreads / 32;
inline constexpr int kAttendRows = 16;        // of a tile
inline constexpr int kAttendKeys = 32;        // processed together: one per lane
inline constexpr int kAttendChunkKeys = 512;  // of a part
inline constexpr int kAttendLargestDim = 512;

// Rows [first, first + rows) of a sequence's new tokens, where row r is query head r % group of token r / group.
struct AttendTile {
  std::int32_t first = 0, rows = 0;
  std::int32_t tokens = 0;                  // new tokens of the sequence
  std::int32_t tensor_row = 0;              // of its first token
  std::int32_t position = 0;                // of its first token
  std::int32_t gap_begin = 0, gap_end = 0;  // evicted keys
  std::int32_t table = 0;                   // where its page table begins
};

// k or v: [pages, kv_heads, page_size, dim], contiguous.
struct CachedTensor {
  const void* data = nullptr;
  const float* scales = nullptr;  // quantised: [pages, kv_heads, page_size]
  int dim = 0;
  bool vectors = false;  // every row is whole 16-byte vectors
};

struct AttendArguments {
  LogitRule rule;  // scale, softcap, positions and sinks; ranges are told by the tiles
  AnyView<4> q, out;
  CachedTensor k, v;
  DeviceView<float, 3> lse, max_logit, max_weight, entropy, sum_p2;

  const AttendTile* tiles = nullptr;
  const std::int32_t* tables = nullptr;  // a page of -1 is evicted
  int page_size = 0;
  int window_left = -1, keeps_first = 0;
  int tile_count = 0, chunks = 0;  // of this launch

  // The parts of one launch: [chunks, tiles, kv_heads, kAttendRows].
  float4* part_sums = nullptr;  // RowSums: maximum, weight, moment, square
  float* part_out = nullptr;    // x value_dim

  __host__ __device__ int query_pitch() const { return (rule.head_dim + 3) / 4 * 4; }
  // Odd, so that lanes that load one column of 32 rows use different banks.
  __host__ __device__ int cached_pitch() const {
    const int dim = rule.head_dim > rule.value_dim ? rule.head_dim : rule.value_dim;
    return (dim + 3) / 4 * 4 + 1;
  }
  __host__ __device__ int shared_floats() const {
    return 2 * kAttendKeys + kAttendRows * (query_pitch() + kAttendKeys + 1) + kAttendKeys * cached_pitch();
  }
  __device__ std::int64_t part_row(int chunk, int tile, int kv_head, int row) const {
    return ((static_cast<std::int64_t>(chunk) * tile_count + tile) * rule.kv_heads + kv_head) * kAttendRows + row;
  }
};

// One tile and key head: which row is what, and which keys it sees.
class AttendRows {
 public:
  __device__ AttendRows(const AttendArguments& args, int tile, int kv_head)
      : args_(args), tile_(args.tiles[tile]), kv_head_(kv_head) {
    sequence_.q_len = tile_.tokens;
    sequence_.kv_len = sequence_.kv_visible = tile_.position + tile_.tokens;
  }

  __device__ int count() const { return tile_.rows; }
  __device__ int token(int row) const { return (tile_.first + row) / args_.rule.group(); }
  __device__ int head(int row) const {
    return kv_head_ * args_.rule.group() + (tile_.first + row) % args_.rule.group();
  }
  __device__ int position(int row) const { return tile_.position + token(row); }
  __device__ int tensor_row(int row) const { return tile_.tensor_row + token(row); }
  // Keys that any row sees end here.
  __device__ int keys_end() const { return position(tile_.rows - 1) + 1; }

  __device__ bool keeps(int row, int key) const { return sees(position(row), key) && !evicted(key, key + 1); }
  // Whether any row sees a key of [begin, end): the first row's window hides least, the last row's keys reach farthest.
  __device__ bool any_sees(int begin, int end) const {
    const bool hidden = args_.window_left >= 0 && begin >= args_.keeps_first && end <= position(0) - args_.window_left;
    return begin < keys_end() && !hidden && !evicted(begin, end);
  }

  __device__ float logit(float score, int row, int key) const {
    return HeadRule(args_.rule, sequence_, head(row)).unmasked(score, token(row), key);
  }

  // The key's row among all rows of the cache, found through its page; -1: the key does not exist.
  __device__ std::int64_t cached_row(int key) const {
    if (key >= keys_end()) return -1;
    const int page = args_.tables[tile_.table + key / args_.page_size];
    if (page < 0) return -1;
    return (static_cast<std::int64_t>(page) * args_.rule.kv_heads + kv_head_) * args_.page_size + key % args_.page_size;
  }

 private:
  __device__ bool evicted(int begin, int end) const { return begin >= tile_.gap_begin && end <= tile_.gap_end; }
  __device__ bool sees(int position, int key) const {
    const bool hidden = args_.window_left >= 0 && key >= args_.keeps_first && key < position - args_.window_left;
    return key <= position && !hidden;
  }

  const AttendArguments& args_;
  const AttendTile tile_;
  const int kv_head_;
  Sequence sequence_;
};

// Keys or values as floats: 32 rows of the cache, -1 where there is none to read, which gives zeros, as do the columns
// up to a multiple of four. Several loads are in flight at a time.
template <class Cached>
__device__ void load_cached(float* tile, int pitch, const CachedTensor& from, const std::int64_t* cached_rows) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(Cached)), kTogether = 4;
  const auto* elements = static_cast<const Cached*>(from.data);
  const auto scale_of = [&](std::int64_t row) { return from.scales ? from.scales[row] : 1.0f; };
  if (!from.vectors) {
    const int padded = (from.dim + 3) / 4 * 4;
    for (int i = static_cast<int>(threadIdx.x); i < kAttendKeys * padded; i += kAttendThreads) {
      const int key = i / padded, d = i % padded;
      const std::int64_t row = cached_rows[key];
      const bool exists = row >= 0 && d < from.dim;
      tile[key * pitch + d] = exists ? static_cast<float>(elements[row * from.dim + d]) * scale_of(row) : 0.0f;
    }
    return;
  }
  const int row_vectors = from.dim / kVector, all = kAttendKeys * row_vectors;
  for (int first = static_cast<int>(threadIdx.x); first < all; first += kTogether * kAttendThreads) {
    uint4 raw[kTogether];
    float scale[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int i = first + n * kAttendThreads;
      const std::int64_t row = i < all ? cached_rows[i / row_vectors] : -1;
      raw[n] = make_uint4(0, 0, 0, 0);
      scale[n] = 1.0f;
      if (row < 0) continue;
      raw[n] = *reinterpret_cast<const uint4*>(elements + row * from.dim + i % row_vectors * kVector);
      scale[n] = scale_of(row);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int i = first + n * kAttendThreads;
      if (i >= all) break;
      float* to = tile + i / row_vectors * pitch + i % row_vectors * kVector;
      const auto* values = reinterpret_cast<const Cached*>(&raw[n]);
#pragma unroll
      for (int e = 0; e < kVector; ++e) to[e] = static_cast<float>(values[e]) * scale[n];
    }
  }
}

__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Warp w works on the rows w, w + 4, ... in scores and softmax, where a lane has a key. In the sums of values a thread
// has the columns threadIdx.x, threadIdx.x + 128, ... of every row.
template <class Cached, int Columns>
class AttendBlock {
 public:
  static constexpr int kRowsAWarp = kAttendRows / kAttendWarps;

  __device__ AttendBlock(const AttendArguments& args, const AttendRows& rows, float* shared)
      : args_(args),
        rows_(rows),
        cached_rows_(reinterpret_cast<std::int64_t*>(shared)),
        q_(shared + 2 * kAttendKeys),
        cached_(q_ + kAttendRows * args.query_pitch() + kAttendRows * (kAttendKeys + 1)),
        weights_(q_ + kAttendRows * args.query_pitch()),
        factors_(weights_ + kAttendRows * kAttendKeys) {
    for (int i = static_cast<int>(threadIdx.x); i < kAttendRows * args.query_pitch(); i += kAttendThreads) {
      const int row = i / args.query_pitch(), d = i % args.query_pitch();
      const bool exists = row < rows.count() && d < args.rule.head_dim;
      q_[i] = exists
                  ? load_as_float(args.q.data, args.q.dtype, args.q.offset(0, rows.head(row), rows.tensor_row(row), d))
                  : 0.0f;
    }
  }

  __device__ void step(int first) {
    if (threadIdx.x < kAttendKeys) cached_rows_[threadIdx.x] = rows_.cached_row(first + static_cast<int>(threadIdx.x));
    __syncthreads();
    load_cached<Cached>(cached_, args_.cached_pitch(), args_.k, cached_rows_);
    __syncthreads();
    scores_and_softmax(first);
    __syncthreads();
    load_cached<Cached>(cached_, args_.cached_pitch(), args_.v, cached_rows_);
    __syncthreads();
    add_values();
  }

  __device__ void store(int chunk, int tile, int kv_head) {
#pragma unroll
    for (int i = 0; i < kRowsAWarp; ++i) {
      const int row = warp_ + kAttendWarps * i;
      if (row >= rows_.count()) break;
      const float4 sums = make_float4(sums_[i].maximum, warp_sum(sums_[i].weight), warp_sum(sums_[i].moment),
                                      warp_sum(sums_[i].square));
      if (lane_ == 0) args_.part_sums[args_.part_row(chunk, tile, kv_head, row)] = sums;
    }
#pragma unroll
    for (int row = 0; row < kAttendRows; ++row) {
      if (row >= rows_.count()) break;
      float* to = args_.part_out + args_.part_row(chunk, tile, kv_head, row) * args_.rule.value_dim;
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int column = static_cast<int>(threadIdx.x) + kAttendThreads * c;
        if (column < args_.rule.value_dim) to[column] = out_[row][c];
      }
    }
  }

 private:
  __device__ void scores_and_softmax(int first) {
    const float* key = cached_ + lane_ * args_.cached_pitch();
#pragma unroll
    for (int i = 0; i < kRowsAWarp; ++i) {
      const int row = warp_ + kAttendWarps * i;
      if (row >= rows_.count()) break;
      const auto* q = reinterpret_cast<const float4*>(q_ + row * args_.query_pitch());
      float score = 0.0f;
      for (int d = 0; d < args_.query_pitch() / 4; ++d) {
        const float4 four = q[d];
        score = fmaf(four.x, key[4 * d], score);
        score = fmaf(four.y, key[4 * d + 1], score);
        score = fmaf(four.z, key[4 * d + 2], score);
        score = fmaf(four.w, key[4 * d + 3], score);
      }
      const bool seen = rows_.keeps(row, first + lane_);
      const float logit = seen ? rows_.logit(score, row, first + lane_) : -INFINITY;
      const float factor = sums_[i].rescale(fmaxf(sums_[i].maximum, warp_max(logit)));
      weights_[row * kAttendKeys + lane_] = sums_[i].add(logit, true);
      if (lane_ == 0) factors_[row] = factor;
    }
  }

  // A value that a row does not see may be NaN: weight 0 adds nothing, not even 0 times NaN.
  __device__ void add_values() {
#pragma unroll
    for (int row = 0; row < kAttendRows; ++row) {
      if (row >= rows_.count()) break;
#pragma unroll
      for (int c = 0; c < Columns; ++c) out_[row][c] *= factors_[row];
    }
#pragma unroll 1
    for (int key = 0; key < kAttendKeys; key += 4) {
      float value[4][Columns];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
          const int column = static_cast<int>(threadIdx.x) + kAttendThreads * c;
          value[k][c] = column < args_.rule.value_dim ? cached_[(key + k) * args_.cached_pitch() + column] : 0.0f;
        }
      }
#pragma unroll
      for (int row = 0; row < kAttendRows; ++row) {
        if (row >= rows_.count()) break;
        const float4 four = *reinterpret_cast<const float4*>(weights_ + row * kAttendKeys + key);
        const float weight[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (weight[k] == 0.0f) continue;
#pragma unroll
          for (int c = 0; c < Columns; ++c) out_[row][c] = fmaf(weight[k], value[k][c], out_[row][c]);
        }
      }
    }
  }

  const AttendArguments& args_;
  const AttendRows& rows_;
  std::int64_t* cached_rows_;  // of the current keys
  float *q_, *cached_, *weights_, *factors_;
  const int warp_ = static_cast<int>(threadIdx.x) / 32, lane_ = static_cast<int>(threadIdx.x) % 32;
  RowSums sums_[kRowsAWarp];  // of each lane's keys
  float out_[kAttendRows][Columns] = {};
};

// One block per tile, key head and chunk.
template <class Cached, int Columns>
__global__ void __launch_bounds__(kAttendThreads) attend_kernel(const __grid_constant__ AttendArguments args) {
  extern __shared__ __align__(16) float attend_shared[];
  const int chunk = static_cast<int>(blockIdx.x) % args.chunks, other = static_cast<int>(blockIdx.x) / args.chunks;
  const int kv_head = other % args.rule.kv_heads, tile = other / args.rule.kv_heads;
  const AttendRows rows(args, tile, kv_head);
  const int begin = chunk * kAttendChunkKeys;
  if (begin >= rows.keys_end()) return;  // the merge skips it, too
  AttendBlock<Cached, Columns> block(args, rows, attend_shared);
  for (int key = begin; key < begin + kAttendChunkKeys; key += kAttendKeys) {
    if (rows.any_sees(key, key + kAttendKeys)) block.step(key);
  }
  block.store(chunk, tile, kv_head);
}

// One block per row of each tile and key head: merges its parts, in order.
__global__ void __launch_bounds__(kAttendThreads) merge_attend_kernel(const __grid_constant__ AttendArguments args) {
  const int row = static_cast<int>(blockIdx.x) % kAttendRows, other = static_cast<int>(blockIdx.x) / kAttendRows;
  const int kv_head = other % args.rule.kv_heads, tile = other / args.rule.kv_heads;
  const AttendRows rows(args, tile, kv_head);
  if (row >= rows.count()) return;
  const int parts = (rows.keys_end() + kAttendChunkKeys - 1) / kAttendChunkKeys;

  RowSums total;
  float out[kAttendLargestDim / kAttendThreads] = {};
  for (int part = 0; part < parts; ++part) {
    const std::int64_t at = args.part_row(part, tile, kv_head, row);
    const float4 stored = args.part_sums[at];
    RowSums sums{stored.x, stored.y, stored.z, stored.w};
    const float top = fmaxf(total.maximum, sums.maximum);
    const float before = total.rescale(top), share = sums.rescale(top);
    total.weight += sums.weight;
    total.moment += sums.moment;
    total.square += sums.square;
    int c = 0;
    for (int column = static_cast<int>(threadIdx.x); column < args.rule.value_dim; column += kAttendThreads, ++c) {
      out[c] = fmaf(share, args.part_out[at * args.rule.value_dim + column], before * out[c]);
    }
  }

  const int head = rows.head(row), tensor_row = rows.tensor_row(row);
  const RowResult result = finish(total, args.rule.sinks ? args.rule.sinks(head) : -INFINITY);
  int c = 0;
  for (int column = static_cast<int>(threadIdx.x); column < args.rule.value_dim; column += kAttendThreads, ++c) {
    store_float(args.out.data, args.out.dtype, args.out.offset(0, head, tensor_row, column),
                total.weight == 0.0f ? 0.0f : out[c] * result.max_weight);
  }
  if (threadIdx.x != 0) return;
  if (args.lse) args.lse(0, head, tensor_row) = result.lse;
  if (args.max_logit) args.max_logit(0, head, tensor_row) = result.max_logit;
  if (args.max_weight) args.max_weight(0, head, tensor_row) = result.max_weight;
  if (args.entropy) args.entropy(0, head, tensor_row) = result.entropy;
  if (args.sum_p2) args.sum_p2(0, head, tensor_row) = result.sum_p2;
}

}  // namespace rootdk::cuda::portable
