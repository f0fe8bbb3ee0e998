#pragma once

// The two consumer warpgroups of a split block share 64 keys: one has the gradient of their values, the other that of
// the keys, each in registers for the whole work item. For each query tile t (transposed: rows are keys):
//
//   gradient of v   issue dV += P(t) dO(t), S(t+1) | wait | P(t+1) from S(t+1): f32 to the other, 16 bits kept
//   gradient of k   issue dK += dS(t) Q(t), dP(t+1) | dS(t) to shared memory | wait | dS(t+1) from P(t+1), dP(t+1)
//
// While one waits for its products, those of the other and of the gradient of q keep the tensor cores busy.

#include <cstddef>

#include "cuda/hopper/backward/gradient_products.cuh"
#include "cuda/hopper/backward/logits.cuh"
#include "cuda/hopper/backward/rich.cuh"
#include "cuda/hopper/backward/warpgroup.cuh"
#include "cuda/ptx/address.cuh"

namespace rootdk::cuda::hopper {

// Whether a warpgroup has two products in flight. With one stage of grad_out the next tile arrives late: then neither
// grad_out nor q may be held longer than their products take.
template <class C>
inline constexpr bool kOverlap = C::kGradOutStages > 1;

// Computes the weights and the gradient of v.
template <class C>
class GradVWarpgroup : BackwardWarpgroup<C> {
  using Base = BackwardWarpgroup<C>;
  using Base::at, Base::release, Base::p_, Base::k_, Base::q_, Base::steps_, Base::i_, Base::exchange;
  using typename Base::Element;
  using typename Base::Shared;
  using Exchange = WeightExchange<C::kGradOutStages>;
  static constexpr int kBlockQ = C::kBlockQ;

 public:
  __device__ __forceinline__ GradVWarpgroup(Shared& shared, const BackwardParams& params)
      : Base(shared, params, static_cast<int>(threadIdx.x) & 127) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(at(offsetof(Shared, k_full), k_.stage), k_.parity);
      if (!this->begin_tile()) return;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) grad_v_[i] = 0.f;
      if (steps_ > 0) {
        first_weights();
#pragma unroll 1
        for (; steps_ > 1; --steps_) step<false>();
        step<true>();
      }
      const KeyTile tile = this->this_tile();
      this->release_tile();
      this->store_rows(grad_v_, 1.f, p_.grad_v, p_.rule.value_dim, tile);
      if (!all_finite(grad_v_)) this->suspect(tile);
    }
  }

 private:
  __device__ __forceinline__ void first_weights() {
    float s[kBlockQ / 2];
    ptx::mbarrier_wait(at(offsetof(Shared, q_full), q_.stage), q_.parity);
    ptx::wgmma_fence();
    multiply_key_query<C>(s, this->k_operand(), this->q_operand(q_.stage));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    scores_to_weights(s, this->needs_mask(this->walk()));
  }

  template <bool Last>
  __device__ __forceinline__ void step() {
    asm volatile("" : "+r"(this->base_), "+r"(this->thread_));  // as in BackwardConsumer
    ptx::mbarrier_wait(at(offsetof(Shared, grad_out_full), grad_out_.stage), grad_out_.parity);
    ptx::pin(weights_);
    ptx::pin(grad_v_);
    ptx::wgmma_fence();
    add_weighted_queries<C>(grad_v_, weights_, this->grad_out_transposed(grad_out_.stage));
    ptx::wgmma_commit();
    if constexpr (Last) {
      ptx::wgmma_wait<0>();
      ptx::pin(grad_v_);
      release_grad_out();
    } else {
      float s[kBlockQ / 2];
      if constexpr (!kOverlap<C>) ptx::wgmma_wait<0>(), release_grad_out();
      ptx::mbarrier_wait(at(offsetof(Shared, q_full), q_.stage), q_.parity);
      ptx::wgmma_fence();
      multiply_key_query<C>(s, this->k_operand(), this->q_operand(q_.stage));
      ptx::wgmma_commit();
      if constexpr (kOverlap<C>) ptx::wgmma_wait<1>(), release_grad_out();
      const bool mask = this->next_query_tile();
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      ptx::pin(weights_);
      ptx::pin(grad_v_);
      scores_to_weights(s, mask);
    }
  }

  __device__ __forceinline__ void release_grad_out() {
    release(offsetof(Shared, grad_out_empty), grad_out_.stage);
    grad_out_.advance();
  }

  // Computes the weights of query tile i_, whose rows are in q_'s stage, for both warpgroups.
  __device__ __forceinline__ void scores_to_weights(float (&s)[kBlockQ / 2], bool mask) {
    const std::uint32_t rows = this->row_address(offsetof(Shared, negative_lse), q_.stage);
    if constexpr (Base::kRich) rich_logits<Element>(s, p_, rich_coordinates());
    const int query = i_ * kBlockQ + 2 * (this->lane() & 3);
    if (mask) {
      const int4 limits = this->mask_limits();
      mask_keys(s, limits.z + this->key() - query, static_cast<unsigned>(p_.left + p_.right + 1),
                limits.w - this->key());
    }
    to_weights(s, Base::kRich ? 1.f : p_.scale_log2, rows);
    if constexpr (Base::kRich) {
      if (p_.rule.dropout.active()) mark_dropped(s, p_, rich_coordinates(), exchange(offsetof(Exchange, kept)));
    }
    hand_over(s);
    __syncwarp();  // all lanes have read the rows
    release(offsetof(Shared, q_empty), q_.stage);
    q_.advance();
    if constexpr (Base::kRich) {
      if (p_.rule.dropout.active()) drop_marked(s, p_.rule.dropout.keep_scale);
    }
    to_operand<Element>(s, weights_);
  }

  __device__ __forceinline__ RichCoordinates rich_coordinates() const {
    return {this->this_tile(), this->head_,   i_ * kBlockQ + 2 * (this->lane() & 3),
            this->key(),       this->thread_, i_ * kBlockQ};
  }

  __device__ __forceinline__ void hand_over(const float (&s)[kBlockQ / 2]) {
    ptx::mbarrier_wait(exchange(offsetof(Exchange, empty)), exchanged_.parity ^ 1);
    exchanged_.advance();
    const std::uint32_t own = exchange(offsetof(Exchange, weights)) + this->thread_ * 16;
#pragma unroll
    for (int c = 0; c < kBlockQ / 8; ++c) {
      ptx::store_shared(own + c * 128 * 16, make_float4(s[4 * c], s[4 * c + 1], s[4 * c + 2], s[4 * c + 3]));
    }
    ptx::mbarrier_arrive(exchange(offsetof(Exchange, full)));
  }

  Ring<C::kGradOutStages> grad_out_;
  Ring<1> exchanged_;
  float grad_v_[C::kHeadDim / 2];       // [64 keys, head_dim]
  std::uint32_t weights_[kBlockQ / 4];  // of the current tile, as operand
};

// Computes the gradients of the scores and the gradient of k.
template <class C>
class GradKWarpgroup : BackwardWarpgroup<C> {
  using Base = BackwardWarpgroup<C>;
  using Base::at, Base::release, Base::p_, Base::k_, Base::v_, Base::q_, Base::steps_, Base::exchange;
  using typename Base::Element;
  using typename Base::Shared;
  using Exchange = WeightExchange<C::kGradOutStages>;
  static constexpr int kBlockQ = C::kBlockQ;

 public:
  __device__ __forceinline__ GradKWarpgroup(Shared& shared, const BackwardParams& params)
      : Base(shared, params, static_cast<int>(threadIdx.x) & 127) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(at(offsetof(Shared, k_full), k_.stage), k_.parity);
      if (!this->begin_tile()) return;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) grad_k_[i] = 0.f;
      if (steps_ > 0) {
        first_grad_scores();
#pragma unroll 1
        for (; steps_ > 1; --steps_) step<false>();
        step<true>();
      }
      const KeyTile tile = this->this_tile();
      this->release_tile();
      this->store_rows(grad_k_, p_.rule.scale, p_.grad_k, p_.rule.head_dim, tile);
      if (!all_finite(grad_k_)) this->suspect(tile);
    }
  }

 private:
  __device__ __forceinline__ void first_grad_scores() {
    float grad_weights[kBlockQ / 2];
    ptx::mbarrier_wait(at(offsetof(Shared, v_full)), v_.parity);
    v_.advance();
    ptx::mbarrier_wait(at(offsetof(Shared, grad_out_full), grad_out_.stage), grad_out_.parity);
    ptx::wgmma_fence();
    multiply_key_query<C>(grad_weights, this->v_operand(), this->grad_out_operand(grad_out_.stage));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(grad_weights);
    if (steps_ == 1) release(offsetof(Shared, v_empty));
    to_grad_scores(grad_weights);
  }

  template <bool Last>
  __device__ __forceinline__ void step() {
    asm volatile("" : "+r"(this->base_), "+r"(this->thread_));  // as in BackwardConsumer
    ptx::pin(grad_scores_);
    ptx::pin(grad_k_);
    ptx::wgmma_fence();
    add_weighted_queries<C>(grad_k_, grad_scores_, this->q_transposed(q_.stage));
    ptx::wgmma_commit();
    if constexpr (!C::kTwoPasses) this->hand_to_grad_q(grad_scores_);
    if constexpr (Last) {
      ptx::wgmma_wait<0>();
      ptx::pin(grad_k_);
      release_q();
    } else {
      float grad_weights[kBlockQ / 2];
      if constexpr (!kOverlap<C>) ptx::wgmma_wait<0>(), release_q();
      ptx::mbarrier_wait(at(offsetof(Shared, grad_out_full), grad_out_.stage), grad_out_.parity);
      ptx::wgmma_fence();
      multiply_key_query<C>(grad_weights, this->v_operand(), this->grad_out_operand(grad_out_.stage));
      ptx::wgmma_commit();
      if constexpr (kOverlap<C>) ptx::wgmma_wait<1>(), release_q();
      ptx::wgmma_wait<0>();
      ptx::pin(grad_weights);
      ptx::pin(grad_scores_);
      ptx::pin(grad_k_);
      if (steps_ == 2) release(offsetof(Shared, v_empty));  // this was the last product with v
      to_grad_scores(grad_weights);
    }
  }

  __device__ __forceinline__ void release_q() {
    release(offsetof(Shared, q_empty), q_.stage);
    q_.advance();
  }

  // Computes the gradients of the scores of the tile in grad_out_'s stage, as operand. Its q, in q_'s stage, has
  // arrived: the weights were computed from it. If dropout cannot need grad_out again, it is released before the
  // weights arrive.
  __device__ __forceinline__ void to_grad_scores(float (&grad_weights)[kBlockQ / 2]) {
    const std::uint32_t delta = this->row_address(offsetof(Shared, delta), grad_out_.stage);
    if constexpr (!Base::kRich) {
      subtract_delta(grad_weights, delta);
      release_grad_out();
    }
    ptx::mbarrier_wait(at(offsetof(Shared, q_full), q_.stage), q_.parity);
    ptx::mbarrier_wait(exchange(offsetof(Exchange, full)), exchanged_.parity);
    exchanged_.advance();
    const std::uint32_t own = exchange(offsetof(Exchange, weights)) + this->thread_ * 16;
#pragma unroll
    for (int c = 0; c < kBlockQ / 8; ++c) {
      const float4 four = ptx::load_shared_float4(own + c * 128 * 16);
      const float weight[4] = {four.x, four.y, four.z, four.w};
      float gradient[4];
      if constexpr (Base::kRich) {
        rich_grad_scores(gradient, weight, &grad_weights[4 * c], p_, rich_rows(delta), c);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) gradient[i] = weight[i] * grad_weights[4 * c + i];
      }
      grad_scores_[2 * c] = ptx::pack<Element>(gradient[0], gradient[1]);
      grad_scores_[2 * c + 1] = ptx::pack<Element>(gradient[2], gradient[3]);
    }
    ptx::mbarrier_arrive(exchange(offsetof(Exchange, empty)));
    if constexpr (Base::kRich) release_grad_out();
  }

  __device__ __forceinline__ RichRows rich_rows(std::uint32_t delta) const {
    const auto offset =
        static_cast<std::uint32_t>((grad_out_.stage * kBlockQ + 2 * (this->lane() & 3)) * sizeof(float));
    return {delta, this->row_address(offsetof(Shared, negative_lse), q_.stage),
            exchange(offsetof(Exchange, grad_entropy)) + offset};
  }

  __device__ __forceinline__ void release_grad_out() {
    __syncwarp();  // all lanes have read its rows
    release(offsetof(Shared, grad_out_empty), grad_out_.stage);
    grad_out_.advance();
  }

  Ring<C::kGradOutStages> grad_out_;
  Ring<1> exchanged_;
  float grad_k_[C::kHeadDim / 2];           // [64 keys, head_dim]
  std::uint32_t grad_scores_[kBlockQ / 4];  // of the current tile, as operand
};

}  // namespace rootdk::cuda::hopper
