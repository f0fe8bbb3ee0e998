#pragma once

// A consumer warpgroup of the forward kernel: 64 rows of each query tile.
//
// For each key tile j (j descends, so j + 1 is the tile before):
//   wait for the turn at the tensor cores; issue S(j) = Q K(j)^T and O += P(j+1) V(j+1); pass the turn on
//   wait for S(j); row maxima; wait for O; exponentials; round P(j) to 16 bits; rescale O
// While one warpgroup computes its softmax, the others run their products. This continues across query tiles: the next
// tile's first S is issued together with this tile's last P V, and the finished O is stored while the other warpgroups
// run their products.

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/forward/fp8_output.cuh"
#include "cuda/hopper/forward/long_sum.cuh"
#include "cuda/hopper/forward/output.cuh"
#include "cuda/hopper/forward/repair.cuh"
#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/products.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"

namespace rootdk::cuda::hopper {

// Named barriers: 0 is __syncthreads(); then one per consumer for its turn at the tensor cores; then one per consumer
// that synchronises its 128 threads.
inline constexpr int kTurnBarrier = 1, kOwnBarrier = 4;

template <class C>
class Consumer {
 public:
  using Element = typename C::Element;
  static constexpr int kBlockKv = C::kBlockKv;

  __device__ __forceinline__ Consumer(SharedStorage<C>& shared, const ForwardMaps& maps, const ForwardParams& params,
                                      int warp)
      : shared_(shared), maps_(maps), p_(params), index_(warp / 4 - 1), lane_(threadIdx.x & 31) {
    first_row_ = 64 * index_;
    row_ = first_row_ + (warp & 3) * 16 + lane_ / 4;
    column_ = 2 * (lane_ & 3);
    q_matrix_ = ptx::matrix_descriptor(ptx::shared_address(shared.q) + first_row_ * 128, 16, kRowGroupBytes);
    k_matrix_ = ptx::matrix_descriptor(ptx::shared_address(shared.k), 16, kRowGroupBytes);
    if constexpr (C::kFp8) {
      v_matrix_ = ptx::matrix_descriptor<C::kVSwizzle>(ptx::shared_address(shared.v), 16, 8 * C::kVPanelKeys);
    } else {
      v_matrix_ = ptx::matrix_descriptor(ptx::shared_address(shared.v), C::kKvPanelBytes, kRowGroupBytes);
    }
    fence_word_ = ptx::shared_address(&shared.fence_word);
  }

  __device__ __forceinline__ void run() {
    // The last warpgroup gives the first warpgroup its first turn.
    if (C::kTurns && index_ == C::kConsumers - 1) ptx::named_barrier_arrive(kTurnBarrier, 256);
    if (!next_tile()) return;
    start_first_tile();
    while (true) {
      walk_keys();
      const RowState done = state_;
      if constexpr (C::kLongRows) long_sum_.rescale_to(state_.m);
      const bool done_sampled = sampled_;
      const bool more = next_tile();
      if (more) {
        finish_under_next();
      } else {
        finish_last();
      }
      store_tile(more ? done_tile_ : this_tile_, done, done_sampled);
      if (!more) break;
      begin_output();
    }
    give_back_queries();
    if (C::kFp8 && lane_ == 0) ptx::bulk_wait_read();
  }

 private:
  static constexpr SoftmaxStep step_of(bool first, bool masked, bool statistics) {
    return {.first = first, .guarded = masked || C::kRich, .statistics = statistics};
  }
  // The rich variant computes its statistics in a separate pass, only if they are asked for.
  static constexpr bool kStatistics = C::kSampled;

  // Waits for the next query tile; false: there are no more.
  __device__ __forceinline__ bool next_tile() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_full[q_.stage]), q_.parity);
    const int buffer = tile_ring_.stage;
    tile_ring_.advance();
    const int sequence = ptx::load_shared_int4(ptx::shared_address(&shared_.tile[buffer])).x;
    if (__shfl_sync(0xffffffffu, sequence, 0) < 0) return false;
    done_tile_ = this_tile_;
    this_tile_ = buffer;
    return true;
  }

  // The tile's description is read from shared memory at every use, to save registers.
  __device__ __forceinline__ WorkTile read_tile(int buffer) const {
    const std::uint32_t address = ptx::shared_address(&shared_.tile[buffer]);
    const int4 low = ptx::load_shared_int4(address);
    WorkTile tile{.sequence = low.x,
                  .head = low.y,
                  .q0 = low.z,
                  .q_begin = 0,
                  .q_len = p_.q_len,
                  .kv_begin = 0,
                  .kv_len = p_.kv_len,
                  .kv_visible = p_.kv_len};
    if constexpr (C::kRanged) {
      const int4 high = ptx::load_shared_int4(address + 16);
      tile.q_begin = low.w;
      tile.kv_begin = high.y;
      tile.q_len = high.x;
      tile.kv_len = high.z;
      tile.kv_visible = high.w;
    }
    return tile;
  }

  // The last product with these queries is done. Their memory is released now or, if the output is staged in it, after
  // the output has been copied out.
  __device__ __forceinline__ void release_q() {
    if constexpr (!C::kStagedOutput) {
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.q_empty[q_.stage]));
    }
    q_.advance();
  }
  // Releases the query stage in which an output is staged, if there is one. Called some time after the copy began, so
  // that the wait is short.
  __device__ __forceinline__ void give_back_queries() {
    if constexpr (C::kStagedOutput) {
      if (leaving_ < 0) return;
      if (lane_ == 0) {
        ptx::bulk_wait_read();
        ptx::mbarrier_arrive(ptx::shared_address(&shared_.q_empty[leaving_]));
      }
      leaving_ = -1;
    }
  }
  __device__ __forceinline__ void release_k() {
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[k_.stage]));
    k_.advance();
  }
  __device__ __forceinline__ void release_v() {
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.v_empty[v_.stage]));
    v_.advance();
  }

  __device__ __forceinline__ void wait_turn() {
    if constexpr (C::kTurns) ptx::named_barrier_sync(kTurnBarrier + index_, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (C::kTurns)
      ptx::named_barrier_arrive(kTurnBarrier + (index_ + 1 == C::kConsumers ? 0 : index_ + 1), 256);
  }

  __device__ __forceinline__ std::uint64_t q_operand() const { return ptx::advance(q_matrix_, q_.stage * C::kQBytes); }
  __device__ __forceinline__ std::uint64_t k_operand() const { return ptx::advance(k_matrix_, k_.stage * C::kKvBytes); }
  __device__ __forceinline__ std::uint64_t v_operand() const { return ptx::advance(v_matrix_, v_.stage * C::kVBytes); }

  // The first tile of a block: there is nothing to overlap with yet.
  __device__ __forceinline__ void start_first_tile() {
    plan_walk();
    skip_keys();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
    ptx::wgmma_fence();
    multiply_qk<C>(s_, q_operand(), k_operand());
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    read_k_scale();
    release_k();
    if (j_ == first_) release_q();
    start_softmax();
    drop_weights();
    round_weights();
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;  // for ptxas only; the first product overwrites it
    skip_values();
    begin_output();
  }

  // The first P V of a tile overwrites the output of the tile before it.
  __device__ __forceinline__ void begin_output() {
    keep_output_ = 0;
    clear_past_end();
  }

  // Which key tiles this query tile visits, and which of them need a mask in this warpgroup.
  __device__ __forceinline__ void plan_walk() {
    const WorkTile tile = read_tile(this_tile_);
    const KeyTiles keys = key_tiles<C>(tile, p_);
    j_ = keys.last;
    first_ = keys.first;
    const int top = tile.q0 + first_row_;
    const int rows_end = query_end<C>(tile, p_);
    idle_ = top >= rows_end;
    if constexpr (kSkips) {
      const int end = key_range<C>(tile, p_, min(top + 64, rows_end) - 1).end;
      skipped_ = keys.last > keys.first && end <= keys.last * kBlockKv;
      j_ -= skipped_;
    }
    unmasked_last_ = max(key_range<C>(tile, p_, top).end, 0) / kBlockKv - 1;
    if constexpr (C::kRanged) unmasked_first_ = (key_range<C>(tile, p_, top + 63).begin + kBlockKv - 1) / kBlockKv;
    if constexpr (kStatistics) sampled_ = (query_tile<C>(tile) + tile.head) % p_.stats_stride == 0;
    if constexpr (C::kFp8) {
      const float2* const units = units_of(tile, this_tile_);
      q_unit_[0] = units[0].x;
      q_unit_[1] = units[8].x;
    }
  }

  // If no row of this warpgroup sees the first key tile, the warpgroup releases the keys and passes its turn at once;
  // the values are released later, after those of the previous query tile. At most one tile is skipped: the producer
  // waits for released values before it loads the keys of the tile after next.
  static constexpr bool kSkips = C::kRanged && C::kConsumers == 3;
  __device__ __forceinline__ void skip_keys() {
    if constexpr (kSkips) {
      if (!skipped_) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
      release_k();
      wait_turn();
      pass_turn();
    }
  }
  __device__ __forceinline__ void skip_values() {
    if constexpr (kSkips) {
      if (!skipped_) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_.stage]), v_.parity);
      release_v();
    }
  }

  __device__ __forceinline__ bool needs_mask(int j) const {
    return j > unmasked_last_ || (C::kRanged && j < unmasked_first_);
  }

  // All key tiles except the first, which start_softmax() has processed.
  __device__ __forceinline__ void walk_keys() {
    --j_;
    if (j_ < first_) give_back_queries();
    if (idle_) {
#pragma unroll 1
      for (; j_ >= first_; --j_) pass_step();
    } else if constexpr (!C::kRanged) {
      walk_unmasked([&] { return j_ >= 0; });
    } else {
      while (j_ >= first_) {
#pragma unroll 1
        for (; j_ >= first_ && needs_mask(j_); --j_) step<true, kStatistics>();
        if constexpr (C::kLongRows) {
          walk_long_rows();
        } else {
          walk_unmasked([&] { return j_ >= first_ && !needs_mask(j_); });
        }
      }
    }
  }

  // All key tiles up to the next that needs a mask, in parts after which the accumulators begin anew.
  __device__ __forceinline__ void walk_long_rows() {
    const int last = max(first_, unmasked_first_);
    while (j_ >= last) {
      const int last_of_part = max(last, j_ - kFp8TilesOfSum + 1);
      walk_unmasked([&] { return j_ >= last_of_part; });
      if (j_ < last) break;
      if constexpr (C::kTuning.rescale_under_qk) {
        rescale();
        correction_[0] = correction_[1] = 1.f;
      }
      long_sum_.take(o_, state_.m);
      keep_output_ = 0;
    }
  }

  // A key tile for a warpgroup whose rows all lie past the end: the barriers without the work.
  __device__ __forceinline__ void pass_step() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
    wait_turn();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_.stage]), v_.parity);
    pass_turn();
    release_k();
    if (j_ == first_) release_q();
    release_v();
    give_back_queries();
  }

  template <class More>
  __device__ __forceinline__ void walk_unmasked(More more) {
    if (!kStatistics || sampled_) {
#pragma unroll 1
      for (; more(); --j_) step<false, kStatistics>();
    } else {
#pragma unroll 1
      for (; more(); --j_) step<false, false>();
    }
  }

  template <bool Masked, bool Statistics>
  __device__ __forceinline__ void step() {
    issue();
    softmax<step_of(false, Masked, Statistics)>(Masked);
    ptx::wgmma_wait<0>();  // ptxas moves this before the exponentials, which is faster than after them
    ptx::pin(o_);
    ptx::pin(s_);
    release_v();
    drop_weights();
    round_weights();
    if constexpr (!C::kTuning.rescale_under_qk) rescale();
  }

  // Issues S(j) = Q K^T and O += P V as two groups, and waits for S only.
  __device__ __forceinline__ void issue() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
    wait_turn();
    ptx::pin(o_);
    ptx::pin(weights_);
    ptx::wgmma_fence();
    multiply_qk<C>(s_, q_operand(), k_operand());
    ptx::wgmma_commit();
    if constexpr (C::kTuning.rescale_under_qk) {
      rescale();
      ptx::pin(o_);
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_.stage]), v_.parity);
    ptx::wgmma_fence();
    issue_pv([&] { pass_turn(); });
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    read_k_scale();
    release_k();
    give_back_queries();
    if (j_ == first_) release_q();
  }

  // The finished tile's last P V, together with the new tile's first S.
  __device__ __forceinline__ void finish_under_next() {
    plan_walk();
    skip_keys();
    issue();
    start_softmax();
    scheduling_fence(state_.l[0], state_.l[1], fence_word_);  // here the exponentials should overlap with P V
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    ptx::pin(s_);
    release_v();
    if constexpr (C::kLongRows) {
      long_sum_.add_to(o_);
      long_sum_.clear();
    }
    skip_values();
    drop_weights();
    round_weights();
  }

  __device__ __forceinline__ void finish_last() {
    if constexpr (C::kTuning.rescale_under_qk) rescale();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_.stage]), v_.parity);
    ptx::pin(o_);
    ptx::pin(weights_);
    ptx::wgmma_fence();
    issue_pv([] {});
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    if constexpr (C::kLongRows) long_sum_.add_to(o_);
    // The output overwrites the queries, so all warps must be done with them. In finish_under_next() the wait for the
    // turn ensures that.
    if constexpr (C::kStagedOutput) ptx::named_barrier_sync(kOwnBarrier + index_, 128);
  }

  __device__ __forceinline__ void start_softmax() { softmax<step_of(true, true, kStatistics)>(needs_mask(j_)); }

  // One key tile of online softmax, in place: scores become weights.
  template <SoftmaxStep Step>
  __device__ __forceinline__ void softmax(bool mask) {
    if constexpr (C::kFp8) return fp8_softmax<Step>(mask);
    if constexpr (C::kTerms == Terms::softcap && !Step.guarded) return capped_softmax<Step>();
    if constexpr (C::kLogits) scores_to_logits<Element, C::kTerms>(s_, coordinates(), p_);
    if constexpr (Step.guarded) {
      if (mask) mask_tile();
    }
    const float unit = C::kLogits ? 1.f : p_.scale_log2;
    float maximum[2], negated[2];
    if constexpr (C::kTuning.integer_max && !Step.first && !Step.guarded) {
      row_maxima_above<C::kTuning.max_chains>(s_, state_.m, maximum);
    } else {
      row_maxima<C::kTuning.max_chains>(s_, maximum);
    }
    constexpr SoftmaxStep kAdvance{
        .first = Step.first, .guarded = Step.guarded, .statistics = Step.statistics || C::kRich};
    advance_maxima<kAdvance>(maximum, unit, state_, correction_, negated);
    if constexpr (C::kTuning.order_after_max) scheduling_fence(negated[0], negated[1], fence_word_);
    if constexpr (C::kRich) {
      if constexpr (Step.first) state_.a[0] = state_.a[1] = state_.b[0] = state_.b[1] = 0.f;
      if (p_.row_values[kEntropy].data || p_.row_values[kSumP2].data) rich_statistics(negated);
    }
    exponentials<Step>(s_, unit, negated, state_);
  }

  // The same in e4m3. Every key tile has a scale, so maxima are kept as logits, in units of log2. Weights are
  // multiplied by 2^kFp8WeightBits, so that small ones keep their digits in e4m3.
  template <SoftmaxStep Step>
  __device__ __forceinline__ void fp8_softmax(bool mask) {
    if constexpr (Step.guarded) {
      if (mask) mask_tile();
    }
    // Never 0: masked scores are -inf, and -inf times 0 would be NaN.
    constexpr float kLeast = 0x1p-126f;
    const float unit[2] = {fmaxf(q_unit_[0] * k_scale_, kLeast), fmaxf(q_unit_[1] * k_scale_, kLeast)};
    float maximum[2], negated[2];
    if constexpr (C::kTuning.integer_max) {
      const float none[2] = {-INFINITY, -INFINITY};
      row_maxima_above<C::kTuning.max_chains>(s_, none, maximum);
    } else {
      row_maxima<C::kTuning.max_chains>(s_, maximum);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) maximum[r] *= unit[r];
    advance_maxima<Step>(maximum, 1.f, state_, correction_, negated);
    if constexpr (C::kTuning.order_after_max) scheduling_fence(negated[0], negated[1], fence_word_);
#pragma unroll
    for (int r = 0; r < 2; ++r) negated[r] += kFp8WeightBits;
    exponentials_of<Step>(
        s_, [&](float x, int r) { return fmaf(x, unit[r], negated[r]); }, state_);
  }

  // The same with a softcap and without a mask. The cap is monotonic, so the maxima are taken before it. If all scores
  // are small, the cap costs two instructions a score.
  template <SoftmaxStep Step>
  __device__ __forceinline__ void capped_softmax() {
    const Softcap& cap = p_.terms.softcap;
    const float none[2] = {-INFINITY, -INFINITY};
    float maximum[2];
    row_maxima_above<C::kTuning.max_chains>(s_, none, maximum);
    const float largest = largest_magnitude(s_, maximum);
    const auto finish = [&](auto capped_plus) {
      float negated[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) maximum[r] = capped_plus(maximum[r], 0.f);
      advance_maxima<Step>(maximum, 1.f, state_, correction_, negated);
      exponentials_of<Step>(
          s_, [&](float x, int r) { return capped_plus(x, negated[r]); }, state_);
    };
    if (__all_sync(0xffffffffu, largest <= cap.tiny)) {
      finish([&](float x, float y) { return fmaf(x, fmaf(cap.tiny_odd[1], x * x, cap.tiny_odd[0]), y); });
    } else if (__all_sync(0xffffffffu, largest <= cap.small)) {
      finish([&](float x, float y) { return fmaf(x, small_softcap_slope(x, cap), y); });
    } else {
      finish([&](float x, float y) { return any_softcap(x, cap) + y; });
    }
  }

  // Sums for entropy and sum_p2 from the logits, in a separate pass.
  __device__ __forceinline__ void rich_statistics(const float (&negated)[2]) {
    float a[2] = {}, b[2] = {};
    for_each_score(s_, [&](float x, int r, int) {
      const float y = ptx::max_or_nan(x + negated[r], kLowestExponent);
      const float weight = ptx::exp2_approximate(y);
      a[r] = fmaf(weight, y, a[r]);
      b[r] = fmaf(weight, weight, b[r]);
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state_.a[r] += a[r];
      state_.b[r] += b[r];
    }
  }

  __device__ __forceinline__ void drop_weights() {
    if constexpr (C::kRich) {
      if (p_.terms.dropout_threshold) drop(s_, coordinates(), p_.terms);
    }
  }

  // The weights of a tile as operand of P V.
  __device__ __forceinline__ void round_weights() {
    if constexpr (C::kFp8) {
      to_e4m3_operand(s_, weights_);
    } else {
      to_operand<Element>(s_, weights_);
    }
  }

  __device__ __forceinline__ void read_k_scale() {
    if constexpr (C::kFp8) {
      k_scale_ = shared_.fp8.k_scale[k_.stage];
      __syncwarp();  // before lane 0 releases the stage
    }
  }
  // What Fp8Scales has of the thread's first row and those after it. The copy engine began at an even row.
  __device__ __forceinline__ const float2* units_of(const WorkTile& tile, int buffer) const {
    return &shared_.fp8.q[buffer][row_ + static_cast<int>(fp8_row(tile, p_) % 2)];
  }

  template <class Pass>
  __device__ __forceinline__ void issue_pv(Pass pass) {
    if constexpr (C::kFp8) {
      multiply_pv_by_columns<C>(o_, weights_, v_operand(), keep_output_, pass);
    } else {
      multiply_pv<C>(o_, weights_, v_operand(), keep_output_, pass);
    }
    keep_output_ = 1;
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
      o_[4 * i + 0] *= correction_[0];
      o_[4 * i + 1] *= correction_[0];
      o_[4 * i + 2] *= correction_[1];
      o_[4 * i + 3] *= correction_[1];
    }
  }

  __device__ __forceinline__ void mask_tile() {
    const WorkTile tile = read_tile(this_tile_);
    const KeyRange upper = key_range<C>(tile, p_, tile.q0 + row_), lower = key_range<C>(tile, p_, tile.q0 + row_ + 8);
    const int end[2] = {upper.end, lower.end};
    if constexpr (C::kRanged) {
      const int begin[2] = {upper.begin, lower.begin};
      mask_outside(s_, begin, end, j_ * kBlockKv + column_);
    } else {
      mask_from(s_, end, j_ * kBlockKv + column_);
    }
  }

  __device__ __forceinline__ TileCoordinates coordinates() const {
    const WorkTile tile = read_tile(this_tile_);
    const int row = tile.q0 + row_, offset = tile.kv_len - tile.q_len;
    return {.sequence = tile.sequence,
            .head = {tile.head, tile.head},
            .row = {row, row + 8},
            .position = {row + offset, row + 8 + offset},
            .column = j_ * kBlockKv + column_,
            .q_len = tile.q_len,
            .kv_len = tile.kv_len};
  }

  // Rows of v past the end of a sequence hold another sequence's values or none at all, and 0 times such a value may be
  // NaN: they are set to 0. Every warpgroup writes the same zeros before its products.
  __device__ __forceinline__ void clear_past_end() {
    if constexpr (C::kRanged && !C::kFp8) {
      if (!p_.kv_lengths.data && !p_.q_starts.data) return;
      const int kept = max(0, read_tile(this_tile_).kv_visible - j_ * kBlockKv);
      if (kept >= kBlockKv) return;
      ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_.stage]), v_.parity);
      const std::uint32_t buffer = ptx::shared_address(shared_.v) + v_.stage * C::kKvBytes;
#pragma unroll 1
      for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll 1
        for (int vector = 8 * kept + (threadIdx.x & 127); vector < 8 * kBlockKv; vector += 128) {
          ptx::store_shared(buffer + panel * C::kKvPanelBytes + 16 * vector, make_int4(0, 0, 0, 0));
        }
      }
      ptx::fence_async_shared();
      ptx::named_barrier_sync(kOwnBarrier + index_, 128);
    }
  }

  __device__ __forceinline__ void store_tile(int buffer, const RowState& state, bool sampled) {
    const WorkTile tile = read_tile(buffer);
    if constexpr (C::kFp8) {
      const int warp_row = row_ - lane_ / 4;
      store_fp8_tile<C>(p_, maps_, tile, row_, state, sampled, o_, units_of(tile, buffer),
                        shared_.fp8.v_columns[buffer],
                        ptx::shared_address(shared_.fp8.out) + warp_row * C::kOutputPanels * 128);
    } else {
      store_exact_tile(tile, buffer, state, sampled);
    }
  }
  __device__ __forceinline__ void store_exact_tile(const WorkTile& tile, int buffer, const RowState& state,
                                                   bool sampled) {
    const int batch = p_.q_starts.data ? 0 : tile.sequence;
    const float unit = C::kLogits ? 1.f : p_.scale_log2;
    const int rows_end = query_end<C>(tile, p_);
    RowResult results[2];
    bool exists[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums{.m = state.m[r] * unit,
                         .l = quad_sum(state.l[r]),
                         .a = C::kSampled || C::kRich ? quad_sum(state.a[r]) : 0.f,
                         .b = C::kSampled || C::kRich ? quad_sum(state.b[r]) : 0.f};
      results[r] = p_.sinks.data ? row_result(sums, sink_of(p_, tile.head)) : row_result(sums);
      exists[r] = tile.q0 + row_ + 8 * r < rows_end;
    }
    store_row_values<C>(p_, batch, tile.head, tile.q_begin + tile.q0 + row_, results, exists, sampled);

    std::uint32_t pairs[2][C::kHeadDim / 8];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile.q0 + row_ + 8 * r;
      const float factor = C::kRich ? results[r].factor * p_.terms.dropout_keep_scale : results[r].factor;
      pack_output_row(r, factor, pairs[r]);
      if constexpr (C::kRanged) {
        if (exists[r] && !ptx::all_finite<Element>(pairs[r]) && isfinite(factor)) {
          repair_row<C>(p_, tile, {batch, row, state.m[r] * unit}, r, column_, o_);
          pack_output_row(r, factor, pairs[r]);
        }
      }
      if constexpr (!C::kStagedOutput) {
        store_output_row<C>(pairs[r], exists[r], output_row<Element>(p_, batch, tile.head, tile.q_begin + row), p_);
      }
    }
    if constexpr (C::kStagedOutput) {
      leaving_ = buffer % C::kQStages;
      const int warp_row = row_ - lane_ / 4;
      const std::uint32_t rows = ptx::shared_address(shared_.q) + leaving_ * C::kQBytes + warp_row * 128;
      stage_output<C>(rows, pairs);
      send_output<C>(rows, maps_, p_, tile, tile.q0 + warp_row, rows_end);
    }
  }
  __device__ __forceinline__ void pack_output_row(int r, float factor, std::uint32_t (&pairs)[C::kHeadDim / 8]) const {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
      const float* pair = &o_[4 * i + 2 * r];
      pairs[i] = ptx::pack<Element>(pair[0] * factor, pair[1] * factor);
    }
  }

  SharedStorage<C>& shared_;
  const ForwardMaps& maps_;
  const ForwardParams& p_;
  const int index_, lane_;
  int first_row_, row_;  // first rows of the warpgroup and of the thread, inside the query tile
  int column_;           // the thread's first column inside a key tile
  std::uint64_t q_matrix_, k_matrix_, v_matrix_;
  std::uint32_t fence_word_;
  Ring<C::kQStages> q_;
  Ring<C::kStages> k_, v_;

  Ring<C::kTileBuffers> tile_ring_;
  int this_tile_ = 0, done_tile_ = 0;       // buffers of the current query tile and of the one before
  int j_, first_;                           // current key tile, and the last one of the walk
  int unmasked_first_ = 0, unmasked_last_;  // key tiles that need no mask
  bool skipped_ = false;                    // the last key tile is skipped: only other warpgroups need it
  bool idle_ = false;                       // no row of this warpgroup exists
  int leaving_ = -1;                        // query stage in which an output is staged; -1: none
  int keep_output_ = 0;                     // 0: o_ still holds the previous tile's output
  bool sampled_ = true;
  RowState state_;
  float correction_[2];
  float o_[C::kHeadDim / 2];                    // [64, head_dim] of the warpgroup
  float s_[C::kBlockKv / 2];                    // [64, block_kv]: scores, then weights
  std::uint32_t weights_[C::kWeightRegisters];  // the weights as operand of P V

  // e4m3 alone
  float q_unit_[2], k_scale_;
  LongSum<C::kLongRows ? C::kHeadDim / 2 : 1> long_sum_;
};

}  // namespace rootdk::cuda::hopper
