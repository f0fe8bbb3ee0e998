#pragma once

// The kernel of the preparation: means and scales by column, then e4m3 numbers.
//
// It is bound by memory. k and v are read twice: for their columns, and for their numbers. So that the second time they
// come from L2, the planes (key heads of all sequences) are processed in rounds: while the columns of one round are
// taken, the numbers of an earlier round are written. A block does one item of work. Items are taken in order from a
// counter, so that those which others wait for have been taken by blocks that run.

#include "cuda/hopper/fp8/columns.cuh"
#include "cuda/hopper/fp8/numbers.cuh"
#include "cuda/hopper/fp8/vectors.cuh"
#include "cuda/ptx/global.cuh"

namespace rootdk::cuda::hopper::preparation {

// The order of items: columns of the first round, columns of the second, numbers of the first, columns of the third,
// numbers of the second, and so on.
struct Schedule {
  int planes = 0;                                // sequences times kv_heads
  int together = 1;                              // planes of a round
  int chunks = 0, key_blocks = 0, q_blocks = 0;  // of the longest sequence; q_blocks of all heads of a group

  // Items of a plane. k and v have items of their own.
  __host__ __device__ int columns() const { return 2 * chunks; }
  __host__ __device__ int numbers() const { return q_blocks + 2 * key_blocks; }
  __host__ __device__ std::int64_t items() const {
    const std::int64_t rounds = (planes + together - 1) / together;
    return rounds * together * (columns() + numbers());
  }
};

// What a block does.
enum class Work : std::int32_t { nothing, columns_of_k, columns_of_v, numbers_of_q, numbers_of_k, numbers_of_v };
struct alignas(16) Item {
  Work work;
  int sequence, head, block;  // head: of q for queries, else of k and v; block: of queries, keys, or a chunk
  int plane;
};
__device__ __forceinline__ Item item_at(const Schedule& s, const ForwardParams& p, int item) {
  const int numbers = s.together * s.numbers(), both = numbers + s.together * s.columns();
  const int at = item + numbers, round = at / both;  // numbers of the round before, then columns
  const bool is_numbers = at % both < numbers;
  const int rest = at % both - (is_numbers ? 0 : numbers), of_plane = is_numbers ? s.numbers() : s.columns();
  const int plane = (round - is_numbers) * s.together + rest / of_plane, index = rest % of_plane;
  if (plane >= s.planes) return {Work::nothing, 0, 0, 0, plane};
  const int kv_heads = p.heads / p.group, sequence = plane / kv_heads, kv_head = plane % kv_heads;
  if (is_numbers && index < s.q_blocks) {
    const int blocks = s.q_blocks / p.group;
    return {Work::numbers_of_q, sequence, kv_head * p.group + index / blocks, index % blocks, plane};
  }
  const int of_both = is_numbers ? index - s.q_blocks : index;
  const Work works[2][2] = {{Work::columns_of_k, Work::columns_of_v}, {Work::numbers_of_k, Work::numbers_of_v}};
  return {works[is_numbers][of_both % 2], sequence, kv_head, of_both / 2, plane};
}

// Sums of a chunk. The block that finishes the last chunk of a plane computes the plane's means and scales.
template <class Element>
__device__ __forceinline__ void do_columns(const ForwardParams& p, const Prepared& to, const Schedule& s,
                                           const Item& item, float* shared) {
  __shared__ bool last;
  const Rows rows = rows_of(p, item.sequence);
  if (item.block * kChunk < rows.kv_len) {
    if (item.work == Work::columns_of_k) {
      reduce_chunk<Element, false>(p, to, rows, item.sequence, item.head, item.block, shared);
    } else {
      reduce_chunk<Element, true>(p, to, rows, item.sequence, item.head, item.block, shared);
    }
  }
  __syncthreads();
  int* const done = to.progress + 1 + item.plane;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(done, 1) == s.columns() - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  finish_columns(p, to, rows, item.sequence, item.head, reinterpret_cast<float4*>(shared));
  __syncthreads();
  if (threadIdx.x == 0) ptx::store_release(done, s.columns() + 1);
}

template <class Element, int Lanes>
__device__ __forceinline__ void do_numbers(const ForwardParams& p, const Prepared& to, const Item& item,
                                           std::uint32_t* shared) {
  const Rows rows = rows_of(p, item.sequence);
  if (item.work == Work::numbers_of_q) {
    if (item.block * kQueries < rows.q_len) {
      quantize_queries<Element, Lanes>(p, to, rows, item.sequence, item.head, item.block);
    }
    return;
  }
  if (item.block > 0 && item.block * to.block_kv >= rows.kv_len) return;  // a row without keys still loads one tile
  const int first_block = p.q_starts.data ? rows.kv_begin / to.block_kv + item.sequence : 0;
  if (item.work == Work::numbers_of_k) {
    quantize_keys<Element, Lanes>(p, to, rows, item.sequence, item.head, item.block, first_block,
                                  reinterpret_cast<float*>(shared));
  } else {
    quantize_values<Element, Lanes>(p, to, rows, item.sequence, item.head, item.block, first_block, shared);
  }
}

template <class Element, int Lanes>
__global__ void __launch_bounds__(kThreads, Lanes == 32 ? 2 : 3)
    prepare_kernel(const ForwardParams p, const Prepared to, const Schedule schedule) {
  alignas(16) __shared__ std::uint32_t shared[kSharedWords];
  __shared__ Item taken;
  if (threadIdx.x == 0) {  // for all: an item takes several divisions to find
    taken = item_at(schedule, p, atomicAdd(to.progress, 1));
    if (taken.work >= Work::numbers_of_q) {
      while (ptx::load_acquire(to.progress + 1 + taken.plane) != schedule.columns() + 1) {
      }
    }
  }
  __syncthreads();
  const Item item = taken;
  if (item.work == Work::nothing) return;
  if (item.work >= Work::numbers_of_q) {
    do_numbers<Element, Lanes>(p, to, item, shared);
  } else {
    do_columns<Element>(p, to, schedule, item, reinterpret_cast<float*>(shared));
  }
}

}  // namespace rootdk::cuda::hopper::preparation
