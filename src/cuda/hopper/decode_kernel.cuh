#pragma once

// Few queries against many keys. The heads of a group, and all their queries, are the rows of one tile, so that each
// key and value is read once. A block walks one part of the keys of one key head, or of a cache several parts; where
// there are more, each leaves its sums and its unnormalised output in the workspace, and merge_kernel joins them in
// order.

#include "cuda/hopper/decode_config.h"
#include "cuda/hopper/decode_part.cuh"
#include "cuda/hopper/decode_producer.cuh"
#include "cuda/hopper/logit_terms.cuh"
#include "cuda/hopper/products.cuh"
#include "cuda/hopper/ring.cuh"
#include "cuda/hopper/row_results.cuh"
#include "cuda/hopper/softmax.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class DecodeConsumer {
 public:
  using Element = typename C::Element;
  static constexpr int kBlockKv = C::kBlockKv;

  __device__ __forceinline__ DecodeConsumer(StorageOf<C>& storage, const ForwardParams& params, const DecodePart& part)
      : storage_(storage), shared_(tiles_of(storage)), p_(params), part_(part), lane_(threadIdx.x & 31) {
    rows_ = part.tokens * p_.group;
    idle_ = static_cast<int>(threadIdx.x) / 32 * 16 >= rows_;
    column_ = 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_[r] = threadIdx.x / 32 * 16 + lane_ / 4 + 8 * r;
      const int existing = min(row_[r], rows_ - 1);
      query_[r] = existing / p_.group;
      head_[r] = part.kv_head * p_.group + existing % p_.group;
    }
  }

  __device__ __forceinline__ void run() {
    load_queries();
    walk_parts<C>(
        part_, p_, [&](int) { begin_part(); }, [&](int j) { step(j); },
        [&](int index) {
          if (p_.splits > 1) {
            store_part(index);
          } else {
            store_results();
          }
        });
  }

 private:
  static __device__ __forceinline__ DecodeStorage<C>& tiles_of(StorageOf<C>& storage) {
    if constexpr (C::kInt8) {
      return storage.tiles;
    } else {
      return storage;
    }
  }

  __device__ __forceinline__ void begin_part() {
#pragma unroll
    for (int r = 0; r < 2; ++r) state_.m[r] = -INFINITY, state_.l[r] = state_.a[r] = state_.b[r] = 0.f;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;
  }

  // The rows of the tile, gathered from their heads into the swizzled layout that the products read.
  __device__ __forceinline__ void load_queries() {
    const std::uint32_t buffer = ptx::shared_address(shared_.q);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < C::kBlockQ * C::kPanels * 8; chunk += C::kConsumerThreads) {
      const int row = chunk / (C::kPanels * 8), column = chunk % (C::kPanels * 8) * 8;
      int4 values = make_int4(0, 0, 0, 0);
      if (row < rows_ && column < p_.head_dim) {
        const int query = row / p_.group, head = part_.kv_head * p_.group + row % p_.group;
        values =
            *reinterpret_cast<const int4*>(static_cast<const Element*>(p_.q.data) + part_.batch * p_.q.batch_stride +
                                           head * p_.q.head_stride + (part_.row + query) * p_.q.row_stride + column);
      }
      const int panel = column / 64, sixteenth = (column % 64 / 8) ^ (row & 7);
      ptx::store_shared(buffer + panel * C::kQPanelBytes + row * 128 + sixteenth * 16, values);
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ void step(int j) {
    const std::uint32_t k_full = ptx::shared_address(&shared_.k_full[ring_.stage]);
    const std::uint32_t v_full = ptx::shared_address(&shared_.v_full[ring_.stage]);
    ptx::mbarrier_wait(k_full, ring_.parity);
    ptx::wgmma_fence();
    multiply_qk<C>(s_, ptx::matrix_descriptor(ptx::shared_address(shared_.q), 16, kRowGroupBytes),
                   ptx::matrix_descriptor(ptx::shared_address(shared_.k[ring_.stage]), 16, kRowGroupBytes));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    if (C::kInt8 && !idle_) scale_columns<Scaled::scores>(k_scales());
    release(shared_.k_empty[ring_.stage]);
    if (!idle_) softmax(j);
    ptx::mbarrier_wait(v_full, ring_.parity);
    if constexpr (!C::kInt8) clear_unseen(j);
    if (C::kInt8 && !idle_) scale_columns<Scaled::weights>(v_scales());
    to_operand<typename C::ValueElement>(s_, weights_);
    ptx::pin(o_);
    ptx::pin(weights_);
    ptx::wgmma_fence();
    multiply_pv<C, typename C::ValueElement>(
        o_, weights_,
        ptx::matrix_descriptor(ptx::shared_address(shared_.v[ring_.stage]), C::kKvPanelBytes, kRowGroupBytes), 1,
        [] {});
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    release(shared_.v_empty[ring_.stage]);
    ring_.advance();
  }

  // A warp has read what it reads of a tile.
  __device__ __forceinline__ void release(std::uint64_t& empty) const {
    if constexpr (C::kInt8) __syncwarp();  // scales are read by ordinary loads
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty));
  }

  // Of the tile at work; int8 alone.
  __device__ __forceinline__ std::uint32_t k_scales() const {
    if constexpr (C::kInt8) return ptx::shared_address(storage_.k_scales[ring_.stage]);
    return 0;
  }
  __device__ __forceinline__ std::uint32_t v_scales() const {
    if constexpr (C::kInt8) return ptx::shared_address(storage_.v_scales[ring_.stage]);
    return 0;
  }
  // Multiplies every score, or weight, with the scale of its key, which is NaN where the key or value was not finite. A
  // score shows that; a weight of 0 stays 0, since its row does not see the key.
  enum class Scaled { scores, weights };
  template <Scaled What>
  __device__ __forceinline__ void scale_columns(std::uint32_t scales) {
    const auto scaled = [](float x, float scale) { return What == Scaled::weights && x == 0.f ? 0.f : x * scale; };
    const std::uint32_t from = scales + column_ * sizeof(float);
#pragma unroll
    for (int i = 0; i < kBlockKv / 8; ++i) {
      const float2 scale = ptx::load_shared_float2(from + 8 * i * sizeof(float));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s_[4 * i + 2 * r] = scaled(s_[4 * i + 2 * r], scale.x);
        s_[4 * i + 2 * r + 1] = scaled(s_[4 * i + 2 * r + 1], scale.y);
      }
    }
  }

  __device__ __forceinline__ TilePlace place(int j) const {
    return {.sequence = part_.batch,
            .head = {head_[0], head_[1]},
            .row = {query_[0], query_[1]},
            .position = {part_.position + query_[0], part_.position + query_[1]},
            .column = j * kBlockKv + column_,
            .q_len = p_.q_len,
            .kv_len = p_.kv_len};
  }

  __device__ __forceinline__ void softmax(int j) {
    constexpr SoftmaxStep kStep{.first = false, .guarded = true, .statistics = true};
    const TilePlace tile = place(j);
    scores_to_logits<Element, Terms::any>(s_, tile, p_);
    mask(tile, j);
    float maximum[2], negated[2], correction[2];
    row_maxima<2>(s_, maximum);
    advance_maxima<kStep>(maximum, 1.f, state_, correction, negated);
    exponentials<kStep>(s_, 1.f, negated, state_);
    if (p_.terms.dropout_threshold) drop(s_, tile, p_.terms);
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] *= correction[i / 2 % 2];
  }

  __device__ __forceinline__ void mask(const TilePlace& tile, int j) {
    if (all_see(part_, p_, j * kBlockKv, (j + 1) * kBlockKv)) return;
    for_each_score(s_, [&](float& x, int r, int offset) {
      if (!keeps(part_, p_, tile.position[r], tile.column + offset)) x = -INFINITY;
    });
  }

  // Values that no row sees may be anything, and 0 times NaN is NaN.
  __device__ __forceinline__ void clear_unseen(int j) {
    if (all_see(part_, p_, j * kBlockKv, (j + 1) * kBlockKv)) return;
    const std::uint32_t buffer = ptx::shared_address(shared_.v[ring_.stage]);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < 8 * kBlockKv; chunk += C::kConsumerThreads) {
      const int key = j * kBlockKv + chunk / 8;
      if (any_sees(part_, p_, key, key + 1)) continue;
#pragma unroll 1
      for (int panel = 0; panel < C::kPanels; ++panel) {
        ptx::store_shared(buffer + panel * C::kKvPanelBytes + 16 * chunk, make_int4(0, 0, 0, 0));
      }
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ RowSums row_sums(int r) const {
    return {state_.m[r], quad_sum(state_.l[r]), quad_sum(state_.a[r]), quad_sum(state_.b[r])};
  }

  // Sums and unnormalised output of one part. A part of which the row saw nothing has no output.
  __device__ __forceinline__ void store_part(int index) const {
    const std::int64_t first = partial_rows(p_, index, part_.tile, part_.kv_head);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums = row_sums(r);
      if (row_[r] >= rows_) continue;
      const std::int64_t row = first + row_[r];
      if ((lane_ & 3) == 0) p_.partial_sums[row] = make_float4(sums.m, sums.l, sums.a, sums.b);
      if (sums.l == 0.f) continue;
      float* out = p_.partial_out + row * p_.value_dim;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + column_;
        if (column < p_.value_dim) {
          *reinterpret_cast<float2*>(out + column) = make_float2(o_[4 * i + 2 * r], o_[4 * i + 2 * r + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void store_results() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums = row_sums(r);
      if (row_[r] >= rows_) continue;
      const RowResult result = row_result(sums, sink_of(p_, head_[r]));
      const int row = part_.row + query_[r];
      if ((lane_ & 3) == 0) store_row_results(p_, result, part_.batch, head_[r], row);
      const float factor = result.factor * p_.terms.dropout_keep_scale;
      Element* out = output_row<Element>(p_, part_.batch, head_[r], row);
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + column_;
        if (column < p_.value_dim) {
          *reinterpret_cast<std::uint32_t*>(out + column) =
              ptx::pack<Element>(o_[4 * i + 2 * r] * factor, o_[4 * i + 2 * r + 1] * factor);
        }
      }
    }
  }

  StorageOf<C>& storage_;
  DecodeStorage<C>& shared_;
  const ForwardParams& p_;
  const DecodePart& part_;
  const int lane_;
  int rows_;
  bool idle_;  // no row of this warp exists: it takes part in the products, on numbers that nobody reads
  int row_[2], query_[2], head_[2];
  int column_;
  Ring<C::kStages> ring_;
  RowState state_;
  float o_[C::kHeadDim / 2];
  float s_[C::kBlockKv / 2];
  std::uint32_t weights_[C::kBlockKv / 4];
};

template <class C>
__device__ __forceinline__ void init_barriers(StorageOf<C>& storage, DecodeStorage<C>& tiles) {
  constexpr int kConsumerWarps = C::kConsumerThreads / 32, kConverterWarps = C::kConverterThreads / 32;
  for (int i = 0; i < C::kStages; ++i) {
    ptx::mbarrier_init(ptx::shared_address(&tiles.k_full[i]), C::kInt8 ? kConverterWarps : 1);
    ptx::mbarrier_init(ptx::shared_address(&tiles.v_full[i]), C::kInt8 ? kConverterWarps : 1);
    ptx::mbarrier_init(ptx::shared_address(&tiles.k_empty[i]), kConsumerWarps);
    ptx::mbarrier_init(ptx::shared_address(&tiles.v_empty[i]), kConsumerWarps);
  }
  if constexpr (C::kInt8) {
    for (int i = 0; i < C::kRawStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&storage.raw_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&storage.raw_empty[i]), kConverterWarps);
    }
  }
  ptx::mbarrier_init_fence();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    decode_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params,
                  const __grid_constant__ PagedKeys pages) {
  extern __shared__ __align__(kSharedAlignment) std::uint8_t dynamic_shared[];
  auto& storage = *reinterpret_cast<StorageOf<C>*>(dynamic_shared);
  auto& tiles = *reinterpret_cast<DecodeStorage<C>*>(dynamic_shared);
  const DecodePart& part = tiles.part;
  ptx::allow_next_kernel();                        // the merge waits for our end by itself
  if (C::kPaged) ptx::wait_for_previous_kernel();  // which brings the tables
  if (threadIdx.x == C::kConsumerThreads) {
    tiles.part = decode_part<C>(params, pages);
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    init_barriers<C>(storage, tiles);
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  constexpr int kProducerWarp = C::kConsumerThreads / 32;
  if (warp >= kProducerWarp) {
    if constexpr (C::kMovesRegisters) ptx::registers_shrink_to<C::kOtherRegisters>();
    if constexpr (C::kInt8) {
      if (warp > kProducerWarp) {
        Converter<C>(storage, params, pages, part).run();
        return;
      }
    }
    if constexpr (C::kPaged) {
      load_pages<C>(storage, maps, params, pages, part);
    } else {
      if (threadIdx.x == C::kConsumerThreads) load_tensor<C>(storage, maps, params, part);
    }
  } else {
    if constexpr (C::kMovesRegisters) ptx::registers_grow_to<C::kConsumerRegisters>();
    DecodeConsumer<C>(storage, params, part).run();
  }
}

// The reduction of x over the block, in a fixed order; every thread gets it.
template <class Join>
__device__ __forceinline__ float block_reduce(float x, float (&exchanged)[kDecodeMergeThreads / 32], Join join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
  __syncthreads();
  if ((threadIdx.x & 31) == 0) exchanged[threadIdx.x / 32] = x;
  __syncthreads();
  x = exchanged[0];
#pragma unroll
  for (int warp = 1; warp < kDecodeMergeThreads / 32; ++warp) x = join(x, exchanged[warp]);
  return x;
}

// Joins the parts of every row, a block a row: first the share of each part, then the outputs, where warp w takes the
// parts w, w + 8, ... of each round and the sums of the warps are added in order.
template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads)
    merge_kernel(const __grid_constant__ ForwardParams p, const __grid_constant__ PagedKeys pages) {
  constexpr int kWarps = kDecodeMergeThreads / 32, kColumns = 256;
  __shared__ float shares[kDecodeMergeThreads];  // of the parts of one round
  __shared__ float exchanged[kWarps];
  __shared__ float warp_out[kWarps][kColumns];
  const int kv_heads = p.heads / p.group, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int tile = blockIdx.x / p.tile_rows / kv_heads, kv_head = blockIdx.x / p.tile_rows % kv_heads;
  const int in_tile = blockIdx.x % p.tile_rows;
  const int head = kv_head * p.group + in_tile % p.group, query = in_tile / p.group;

  ptx::wait_for_previous_kernel();
  int parts = p.splits, batch = tile, row = query;
  if (pages.tiles) {
    const PagedTile paged = pages.tiles[tile];
    if (query >= paged.tokens) return;
    parts = (paged.position + paged.tokens + kChunkKeys - 1) / kChunkKeys;
    batch = 0;
    row = paged.row + query;
  }
  const std::int64_t stride = static_cast<std::int64_t>(p.query_tiles) * kv_heads * p.tile_rows;
  const auto sums_of = [&](int part) { return p.partial_sums[part * stride + blockIdx.x]; };

  float top = -INFINITY;
  for (int part = threadIdx.x; part < parts; part += kDecodeMergeThreads) top = fmaxf(top, sums_of(part).x);
  top = block_reduce(top, exchanged, [](float a, float b) { return fmaxf(a, b); });

  RowSums sums{top, 0.f, 0.f, 0.f};  // of this thread's parts
  float out[kColumns / 32] = {};     // columns lane, lane + 32, ...
  for (int first = 0; first < parts; first += kDecodeMergeThreads) {
    const int own = first + threadIdx.x;
    const float4 part = own < parts ? sums_of(own) : make_float4(0.f, 0.f, 0.f, 0.f);
    const bool empty = part.y == 0.f;  // it saw no key, and left no output
    const float shift = empty ? 0.f : part.x - top, share = empty ? 0.f : ptx::exp2_approximate(shift);
    sums.l = fmaf(share, part.y, sums.l);
    sums.a = fmaf(share, fmaf(shift, part.y, part.z), sums.a);
    sums.b = fmaf(share * share, part.w, sums.b);
    __syncthreads();
    shares[threadIdx.x] = share;
    __syncthreads();
    const int count = min(parts - first, kDecodeMergeThreads);
#pragma unroll 8
    for (int i = warp; i < count; i += kWarps) {
      const float* from = p.partial_out + ((first + i) * stride + blockIdx.x) * p.value_dim;
#pragma unroll
      for (int c = 0; c < kColumns / 32; ++c) {
        const bool used = shares[i] != 0.f && lane + 32 * c < p.value_dim;
        out[c] = fmaf(shares[i], used ? from[lane + 32 * c] : 0.f, out[c]);
      }
    }
  }
  const auto add = [](float a, float b) { return a + b; };
  sums.l = block_reduce(sums.l, exchanged, add);
  sums.a = block_reduce(sums.a, exchanged, add);
  sums.b = block_reduce(sums.b, exchanged, add);
#pragma unroll
  for (int c = 0; c < kColumns / 32; ++c) warp_out[warp][lane + 32 * c] = out[c];
  __syncthreads();

  const RowResult result = row_result(sums, sink_of(p, head));
  if (threadIdx.x == 0) store_row_results(p, result, batch, head, row);
  const float factor = result.factor * p.terms.dropout_keep_scale;
  Element* to = output_row<Element>(p, batch, head, row);
  for (int column = threadIdx.x; column < p.value_dim; column += kDecodeMergeThreads) {
    float sum = 0.f;
    for (int w = 0; w < kWarps; ++w) sum += warp_out[w][column];
    to[column] = static_cast<Element>(sum * factor);
  }
}

// The kernels as the launch code sees them.
template <class C>
DecodeKernel describe_decode() {
  return {.function = reinterpret_cast<const void*>(&decode_kernel<C>),
          .merge = reinterpret_cast<const void*>(&merge_kernel<typename C::Element>),
          .head_dim = C::kHeadDim,
          .block_kv = C::kBlockKv,
          .blocks_per_multiprocessor = C::kBlocksPerMultiprocessor,
          .threads = C::kThreads,
          .shared_bytes = static_cast<int>(sizeof(StorageOf<C>))};
}

}  // namespace rootdk::cuda::hopper
