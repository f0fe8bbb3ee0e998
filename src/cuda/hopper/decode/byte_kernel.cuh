#pragma once

// Decode over an 8-bit cache. Keys and values are widened to f16 in registers; the scales are applied to the scores and
// to the weights in f32. The order of the summed columns does not matter as long as both operands use the same one, so
// a thread takes columns that are adjacent in memory.

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/byte_producer.cuh"
#include "cuda/hopper/decode/byte_queries.cuh"
#include "cuda/hopper/decode/byte_scores.cuh"
#include "cuda/hopper/decode/byte_tiles.cuh"
#include "cuda/hopper/decode/merge.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/named_barrier.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class ByteConsumer {
 public:
  using Element = typename C::Element;

  __device__ __forceinline__ ByteConsumer(ByteDecodeStorage<C>& shared, const ForwardParams& params)
      : shared_(shared),
        p_(params),
        part_(shared.part),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) & 31),
        plain_(!params.terms.softcap.cap_log2 && !params.terms.alibi_slopes.data && !params.terms.relative_table.data),
        queries_(shared, params, plain_ ? params.scale_log2 : 1.f) {}

  __device__ __forceinline__ void run() {
    walk_parts<C>(
        part_, p_, [&](int) { begin_part(); }, [&](int j) { step(j); }, [&](int index) { end_part(index); });
  }

 private:
  static constexpr int kSlices = C::kWarpKeys / 16;  // of sixteen keys
  using Scores = KeyScores<4 * kSlices>;
  static constexpr float kSlack = 8.f;  // of the references: weights reach 2^8, far below the largest f16
  using Scales = float[2 * kSlices];    // of the keys whose scores this thread has

  __device__ __forceinline__ void begin_part() {
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        state_[group].m[r] = value_state_[group].m[r] = tops_[group][r] = -INFINITY;
        state_[group].l[r] = state_[group].a[r] = state_[group].b[r] = 0.f;
      }
#pragma unroll
      for (int i = 0; i < C::kOutputBlocks; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o_[group][i][c] = 0.f;
      }
    }
  }

  __device__ __forceinline__ void step(int j) {
    const int in_tile = warp_ * C::kWarpKeys, first_key = j * C::kBlockKv + in_tile;
    ptx::mbarrier_wait(ptx::shared_address(&shared_.full[ring_.stage]), ring_.parity);
    Scores s[C::kRowGroups];
    multiply_qk(KeyBytes<C>(shared_.k[ring_.stage], in_tile), s);
    ValueBytes<C> values(shared_.v[ring_.stage], in_tile);
    Scales k_scales, v_scales;
    load_scales(shared_.k_scales[ring_.stage], k_scales);
    load_scales(shared_.v_scales[ring_.stage], v_scales);
    // Every lane arrives: compute-sanitizer's racecheck does not understand one lane that arrives for its warp.
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.empty[ring_.stage]));
    ring_.advance();

    const bool whole = all_see(part_, p_, first_key, first_key + C::kWarpKeys);
    if (C::kStored == ByteType::e4m3 && !whole) {  // a value that no row sees may be NaN
      values.keep([&](int key) { return any_sees(part_, p_, first_key + key, first_key + key + 1); });
    }
#pragma unroll
    for (float& scale : v_scales) scale = ptx::log2_approximate(scale);
    uint2 weights[C::kRowGroups][kSlices];
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4 * kSlices; ++i) {
        s[group].of[i] *= queries_.units(group)[i / 2 % 2] * scale_of(k_scales, i);
      }
      if (!plain_ || !whole) to_logits(group, first_key, s[group]);
      softmax(group, whole, v_scales, s[group], weights[group]);
    }
    multiply_pv(weights, values);
  }

  __device__ __forceinline__ void load_scales(const float* scales, Scales& own) const {
    const float* from = scales + warp_ * C::kWarpKeys + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 2 * kSlices; ++i) own[i] = from[8 * i];
  }
  // The scale of a score, by its index.
  static __device__ __forceinline__ float scale_of(const Scales& scales, int i) { return scales[i / 4 * 2 + i % 2]; }

  // s^T [keys of the warp, 8 rows] of every group of rows. Two accumulators, because consecutive products into one
  // accumulator wait for each other.
  __device__ __forceinline__ void multiply_qk(const KeyBytes<C>& keys, Scores (&s)[C::kRowGroups]) const {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      float sums[C::kRowGroups][2][4] = {};
#pragma unroll
      for (int step = 0; step < C::kScoreSteps; ++step) {
        const uint4 a = keys.operand(slice, step);
#pragma unroll
        for (int group = 0; group < C::kRowGroups; ++group) {
          const uint2 b = queries_.operand(group, step);
          ptx::mma_f16(sums[group][step % 2], a, b.x, b.y);
        }
      }
#pragma unroll
      for (int group = 0; group < C::kRowGroups; ++group) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {  // row c % 2, key 8 (c / 2)
          s[group].of[4 * slice + c % 2 * 2 + c / 2] = sums[group][0][c] + sums[group][1][c];
        }
      }
    }
  }

  // Logits with every term and all masks. The scores of a plain call are logits: units() has the scale.
  __device__ __forceinline__ void to_logits(int group, int first_key, Scores& s) const {
    const ThreadRows rows(part_, p_, 8 * group + 2 * (lane_ & 3), 1);
    const TileCoordinates tile = rows.coordinates(part_, p_, first_key + lane_ / 4);
    if (!plain_) scores_to_logits<Element, Terms::any>(s, tile, p_);
    mask_unseen(s, part_, p_, tile, first_key, C::kWarpKeys);
  }

  // Logits to the weights that multiply values, in f16. Such a weight is 2^(logit + log2(scale of the value)), relative
  // to about the largest of the row, so that f16 is precise enough whatever the magnitudes of the scales. The sums of
  // the softmax have a separate reference, without the scales.
  __device__ __forceinline__ void softmax(int group, bool whole, const Scales& log2_v_scales, Scores& s,
                                          uint2 (&weights)[kSlices]) {
    constexpr SoftmaxStep kSums{.first = false, .guarded = true, .statistics = true};
    constexpr SoftmaxStep kValues{.first = false, .guarded = true, .statistics = false};
    float scaled[4 * kSlices], maximum[2], value_maximum[2], negated[2], value_negated[2];
#pragma unroll
    for (int i = 0; i < 4 * kSlices; ++i) scaled[i] = s.of[i] + scale_of(log2_v_scales, i);
    if (!whole) {  // a key that is not visible may have the scale NaN
#pragma unroll
      for (int i = 0; i < 4 * kSlices; ++i) scaled[i] = s.of[i] == -INFINITY ? -INFINITY : scaled[i];
    }
    row_maxima<2>(s.of, maximum);
    row_maxima<2>(scaled, value_maximum);
    raise_references(group, maximum, value_maximum);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = state_[group].m[r], value_reference = value_state_[group].m[r];
      negated[r] = reference == -INFINITY ? 0.f : -reference;
      value_negated[r] = value_reference == -INFINITY ? 0.f : -value_reference;
    }
    exponentials<kSums>(s.of, 1.f, negated, state_[group]);
    exponentials<kValues>(scaled, 1.f, value_negated, value_state_[group]);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      weights[i].x = ptx::transpose_8x8(ptx::pack<__half>(scaled[4 * i], scaled[4 * i + 2]));
      weights[i].y = ptx::transpose_8x8(ptx::pack<__half>(scaled[4 * i + 1], scaled[4 * i + 3]));
    }
  }

  // A reference follows the largest number of its row only when that is kSlack above it, usually once in a part.
  // Whether it does depends on its row alone, so that bits do not depend on the other rows of the tile.
  __device__ __forceinline__ void raise_references(int group, const float (&maximum)[2],
                                                   const float (&value_maximum)[2]) {
    constexpr SoftmaxStep kSums{.first = false, .guarded = true, .statistics = true};
    constexpr SoftmaxStep kValues{.first = false, .guarded = true, .statistics = false};
    RowState &state = state_[group], &values = value_state_[group];
    bool above = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tops_[group][r] = fmaxf(tops_[group][r], maximum[r]);
      above = above || maximum[r] > state.m[r] + kSlack || value_maximum[r] > values.m[r] + kSlack;
    }
    if (__all_sync(0xffffffffu, !above)) return;
    float raised[2], value_raised[2], correction[2], negated[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // a number below the reference leaves it as it is
      const float top = column_max(maximum[r]), value_top = column_max(value_maximum[r]);
      raised[r] = top > state.m[r] + kSlack ? top : -INFINITY;
      value_raised[r] = value_top > values.m[r] + kSlack ? value_top : -INFINITY;
    }
    advance_maxima<kSums, itself>(raised, 1.f, state, correction, negated);
    advance_maxima<kValues, itself>(value_raised, 1.f, values, correction, negated);
#pragma unroll
    for (int i = 0; i < C::kOutputBlocks; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o_[group][i][c] *= correction[c % 2];
    }
  }

  __device__ __forceinline__ void multiply_pv(const uint2 (&weights)[C::kRowGroups][kSlices],
                                              const ValueBytes<C>& values) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int block = 0; block < C::kOutputBlocks; ++block) {
        const uint4 a = values.operand(slice, block);
#pragma unroll
        for (int group = 0; group < C::kRowGroups; ++group) {
          ptx::mma_f16(o_[group][block], a, weights[group][slice].x, weights[group][slice].y);
        }
      }
    }
  }

  // --- the end of a part: the warps merge their results
  // ---------------------------------------------------------------------------

  static __device__ __forceinline__ void meet() { ptx::named_barrier_sync(1, C::kConsumerThreads); }

  __device__ __forceinline__ void end_part(int index) {
    meet();  // all warps have read the sums of the previous part
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowState& state = state_[group];
        const float l = column_sum(state.l[r]), a = column_sum(state.a[r]), b = column_sum(state.b[r]);
        const float top = column_max(tops_[group][r]);
        if (lane_ < 4) {
          shared_.sums[warp_][own_row(group, r)] = make_float4(state.m[r], l, a, b);
          shared_.tops[warp_][own_row(group, r)] = top;
        }
      }
    }
    meet();
#pragma unroll 1
    for (int turn = 0; turn < C::kConsumerWarps; ++turn) {
      if (turn == warp_) add_output(turn == 0);
      meet();
    }
    if (p_.partial_sums) {
      store_part(index);
    } else {
      store_results();
    }
  }

  __device__ __forceinline__ int own_row(int group, int r) const { return 8 * group + 2 * (lane_ & 3) + r; }

  // Adds this warp's output, rescaled from the warp's largest weight to the part's largest logit. A row that saw no key
  // has no output.
  __device__ __forceinline__ void add_output(bool first) {
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float top = value_state_[group].m[r];
        factor[r] = top == -INFINITY ? 0.f : ptx::exp2_approximate(top - joint_sums(own_row(group, r)).m);
      }
#pragma unroll
      for (int i = 0; i < C::kOutputBlocks; ++i) {
        float4& to = shared_.out[group * C::kOutputBlocks + i][lane_];
        float4 sum = first ? make_float4(0.f, 0.f, 0.f, 0.f) : to;
        sum.x = fmaf(o_[group][i][0], factor[0], sum.x);
        sum.y = fmaf(o_[group][i][1], factor[1], sum.y);
        sum.z = fmaf(o_[group][i][2], factor[0], sum.z);
        sum.w = fmaf(o_[group][i][3], factor[1], sum.w);
        to = sum;
      }
    }
  }

  // The sums of a row over all warps.
  __device__ __forceinline__ RowSums joint_sums(int row) const {
    RowSums joint{-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll
    for (int warp = 0; warp < C::kConsumerWarps; ++warp) joint.m = fmaxf(joint.m, shared_.tops[warp][row]);
#pragma unroll
    for (int warp = 0; warp < C::kConsumerWarps; ++warp) join(joint, shared_.sums[warp][row]);
    return joint;
  }

  // Calls body(row, column, output) for the elements of the unnormalised output that this thread stores.
  template <class Body>
  __device__ __forceinline__ void for_each_output(Body body) const {
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x); column < p_.value_dim; column += C::kConsumerThreads) {
      const auto [block, g, which] = ValueBytes<C>::output_column(column);
#pragma unroll 1
      for (int row = 0; row < part_.rows; ++row) {
        const float4& four = shared_.out[row / 8 * C::kOutputBlocks + block][4 * g + row % 8 / 2];
        body(row, column, reinterpret_cast<const float*>(&four)[2 * which + row % 2]);
      }
    }
  }

  __device__ __forceinline__ void store_part(int index) const {
    const std::int64_t first = partial_rows(p_, index, part_.tile, part_.kv_head);
    if (const int row = static_cast<int>(threadIdx.x); row < part_.rows) {
      const RowSums sums = joint_sums(row);
      p_.partial_sums[first + row] = make_float4(sums.m, sums.l, sums.a, sums.b);
    }
    for_each_output(
        [&](int row, int column, float output) { p_.partial_out[(first + row) * p_.value_dim + column] = output; });
  }

  __device__ __forceinline__ void store_results() const {
    const auto result_of = [&](int row) {
      return row_result(joint_sums(row), sink_of(p_, row_in(part_, p_, row).head));
    };
    if (const int row = static_cast<int>(threadIdx.x); row < part_.rows) {
      const QueryHead at = row_in(part_, p_, row);
      store_row_results(p_, result_of(row), part_.batch, at.head, part_.row + at.query);
    }
    for_each_output([&](int row, int column, float output) {
      const QueryHead at = row_in(part_, p_, row);
      output_row<Element>(p_, part_.batch, at.head, part_.row + at.query)[column] =
          static_cast<Element>(output * result_of(row).factor);
    });
  }

  ByteDecodeStorage<C>& shared_;
  const ForwardParams& p_;
  const DecodePart& part_;
  const int warp_, lane_;
  const bool plain_;  // logits are scores times the scale, which queries_.units() has
  const ByteQueries<C> queries_;
  Ring<C::kStages> ring_;
  RowState state_[C::kRowGroups];        // of the softmax; m: the reference
  RowState value_state_[C::kRowGroups];  // of the weights: m alone
  float tops_[C::kRowGroups][2];         // the largest logits that this thread has seen
  float o_[C::kRowGroups][C::kOutputBlocks][4];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    byte_decode_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params,
                       const __grid_constant__ CacheKeys cache) {
  extern __shared__ __align__(kSharedAlignment) std::uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<ByteDecodeStorage<C>*>(dynamic_shared);
  ptx::allow_next_kernel();  // the merge kernel waits for the end of this one
  if (threadIdx.x == C::kConsumerThreads) {
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    for (int i = 0; i < C::kStages; ++i) {
      // Of each producer warp one arrival for the boxes, and one per lane for its scales.
      ptx::mbarrier_init(ptx::shared_address(&shared.full[i]), C::kProducerWarps * (1 + 32));
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), C::kConsumerThreads);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::wait_for_previous_kernel();  // it uploads the page tables
  if (threadIdx.x == C::kConsumerThreads) shared.part = decode_part<C>(params, cache);
  __syncthreads();
  if (threadIdx.x < C::kConsumerThreads) {
    ByteConsumer<C>(shared, params).run();
  } else {
    ByteProducer<C>(shared, maps, params, cache).run();
  }
}

template <class C>
DecodeKernel describe_byte_decode() {
  return {.function = reinterpret_cast<const void*>(&byte_decode_kernel<C>),
          .merge = reinterpret_cast<const void*>(&merge_kernel<typename C::Element>),
          .merge_and_repair = reinterpret_cast<const void*>(&merge_and_repair_kernel<typename C::Element>),
          .head_dim = C::kHeadDim,
          .block_kv = C::kBlockKv,
          .rows = C::kRows,
          .blocks_per_multiprocessor = C::kBlocksPerMultiprocessor,
          .threads = C::kThreads,
          .shared_bytes = static_cast<int>(sizeof(ByteDecodeStorage<C>))};
}

// Eight rows per tile, or as many as the registers allow with two blocks per multiprocessor.
template <class Element, int HeadDim>
DecodeKernel describe_byte_decode(ByteType stored, bool many_rows) {
  constexpr int kMany = HeadDim == 256 ? 1 : 2;
  if (stored == ByteType::int8) {
    return many_rows ? describe_byte_decode<ByteDecodeConfig<Element, ByteType::int8, HeadDim, kMany>>()
                     : describe_byte_decode<ByteDecodeConfig<Element, ByteType::int8, HeadDim, 1>>();
  }
  return many_rows ? describe_byte_decode<ByteDecodeConfig<Element, ByteType::e4m3, HeadDim, kMany>>()
                   : describe_byte_decode<ByteDecodeConfig<Element, ByteType::e4m3, HeadDim, 1>>();
}

}  // namespace rootdk::cuda::hopper
