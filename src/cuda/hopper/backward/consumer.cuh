#pragma once

// A consumer warpgroup of the backward kernel: 64 keys, whose gradients stay in registers for the whole work item.
//
// For each query tile t, with at most 184 live registers of accumulators and operands:
//   issue dP(t), dV += P(t) dO(t) | wait for dP | dP - delta in place | wait for dV | dS(t), in place of P(t)
//   issue S(t+1), dK += dS(t) Q(t) | dS(t) to shared memory | wait for S | exponentials in place | wait for dK | P(t+1)
// S, P, dP and dS are transposed: rows are keys. ptxas serialises the products (warning C7512) unless about 30 more
// registers are free.

#include "cuda/hopper/backward/gradient_products.cuh"
#include "cuda/hopper/backward/logits.cuh"
#include "cuda/hopper/backward/warpgroup.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class BackwardConsumer : BackwardWarpgroup<C> {
  using Base = BackwardWarpgroup<C>;
  using Base::at, Base::release, Base::scheduling_fence, Base::p_, Base::k_, Base::v_, Base::q_, Base::steps_, Base::i_;
  using typename Base::Element;
  using typename Base::Shared;
  static constexpr int kBlockQ = C::kBlockQ;

 public:
  __device__ __forceinline__ BackwardConsumer(Shared& shared, const BackwardParams& params)
      : Base(shared, params, static_cast<int>(threadIdx.x) - 128) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(at(offsetof(Shared, k_full), k_.stage), k_.parity);
      if (!this->begin_tile()) return;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) grad_k_[i] = grad_v_[i] = 0.f;
      if (steps_ > 0) {
        first_weights();
#pragma unroll 1
        for (; steps_ > 1; --steps_) step<false>();
        step<true>();
      }
      const KeyTile tile = this->this_tile();
      this->release_tile();
      store(tile);
    }
  }

 private:
  // The first query tile of an item: there is nothing to overlap with yet.
  __device__ __forceinline__ void first_weights() {
    float s[kBlockQ / 2];
    ptx::mbarrier_wait(at(offsetof(Shared, q_full), q_.stage), q_.parity);
    ptx::wgmma_fence();
    multiply_key_query<C>(s, this->k_operand(), this->q_operand(q_.stage));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    scores_to_weights(s, q_.stage, this->needs_mask(this->walk()));
    to_tails<Element>(s, weight_tails_);
    to_operand<Element>(s, weights_);
    ptx::mbarrier_wait(at(offsetof(Shared, v_full)), v_.parity);
    v_.advance();
  }

  template <bool Last>
  __device__ __forceinline__ void step() {
    asm volatile(""
                 : "+r"(this->base_),
                   "+r"(this->thread_));  // else ptxas keeps every loop-invariant address in a register
    std::uint32_t grad_scores[kBlockQ / 4];
    Ring<C::kStages> next = q_;
    next.advance();
    {
      float grad_weights[kBlockQ / 2];
      ptx::mbarrier_wait(at(offsetof(Shared, grad_out_full), q_.stage), q_.parity);
      ptx::pin(weights_);
      ptx::pin(grad_v_);
      ptx::wgmma_fence();
      multiply_key_query<C>(grad_weights, this->v_operand(), this->grad_out_operand(q_.stage));
      ptx::wgmma_commit();
      add_weighted_queries<C>(grad_v_, weights_, this->grad_out_transposed(q_.stage));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(grad_weights);
      subtract_delta(grad_weights, this->row_address(offsetof(Shared, delta), q_.stage));
      scheduling_fence(grad_weights[kBlockQ / 2 - 2], grad_weights[kBlockQ / 2 - 1]);
      ptx::wgmma_wait<0>();  // for grad_v too, so that grad_scores can reuse the registers of the weights
      ptx::pin(grad_weights);
      ptx::pin(weights_);
      ptx::pin(grad_v_);
      if constexpr (Last) release(offsetof(Shared, v_empty));
      to_grad_scores<C>(weights_, weight_tails_, grad_weights, grad_scores,
                        this->row_address(offsetof(Shared, negative_lse), q_.stage), p_.inverse_cap_log2);
    }
    // Both products are issued before grad_scores are written to shared memory: they need registers only.
    float s[kBlockQ / 2];
    if constexpr (!Last) ptx::mbarrier_wait(at(offsetof(Shared, q_full), next.stage), next.parity);
    ptx::pin(grad_scores);
    ptx::pin(grad_k_);
    ptx::wgmma_fence();
    if constexpr (!Last) {
      multiply_key_query<C>(s, this->k_operand(), this->q_operand(next.stage));
      ptx::wgmma_commit();
    }
    add_weighted_queries<C>(grad_k_, grad_scores, this->q_transposed(q_.stage));
    ptx::wgmma_commit();
    this->hand_to_grad_q(grad_scores);
    release(offsetof(Shared, grad_out_empty), q_.stage);
    if constexpr (!Last) {
      const bool mask = this->next_query_tile();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      scores_to_weights(s, next.stage, mask);
      to_tails<Element>(s, weight_tails_);
      scheduling_fence(s[kBlockQ / 2 - 2], s[kBlockQ / 2 - 1]);
    }
    ptx::wgmma_wait<0>();
    if constexpr (!Last) ptx::pin(s);
    ptx::pin(grad_scores);
    ptx::pin(grad_k_);
    release(offsetof(Shared, q_empty), q_.stage);
    if constexpr (!Last) to_operand<Element>(s, weights_);
    q_ = next;
  }

  // Replaces the scores of query tile i_, whose rows are in `stage`, by the weights.
  __device__ __forceinline__ void scores_to_weights(float (&s)[kBlockQ / 2], int stage, bool mask) {
    if constexpr (Base::kSoftcap) softcap<Threads::warp>(s, p_.softcap);
    const int query = i_ * kBlockQ + 2 * (this->lane() & 3);
    if (mask) {
      const int4 limits = this->mask_limits();
      mask_keys(s, limits.z + this->key() - query, static_cast<unsigned>(p_.left + p_.right + 1),
                limits.w - this->key());
    }
    const std::uint32_t rows = this->row_address(offsetof(Shared, negative_lse), stage);
    if constexpr (Base::kAlibi) {
      to_weights_alibi(s, p_.scale_log2, rows, kLog2e * p_.rule.alibi_slopes(this->head_),
                       i_ * kBlockQ - (this->mask_limits().z + p_.right) - this->key());
    } else {
      to_weights(s, Base::kSoftcap ? 1.f : p_.scale_log2, rows);
    }
  }

  __device__ __forceinline__ void store(const KeyTile& tile) {
    this->store_rows(grad_v_, 1.f, p_.grad_v, p_.rule.value_dim, tile);
    this->store_rows(grad_k_, p_.rule.scale, p_.grad_k, p_.rule.head_dim, tile);
    if (!all_finite(grad_k_) || !all_finite(grad_v_)) this->suspect(tile);
  }

  float grad_k_[C::kHeadDim / 2], grad_v_[C::kHeadDim / 2];  // [64 keys, head_dim]
  std::uint32_t weights_[kBlockQ / 4];                       // of the current tile, as operand
  std::uint32_t weight_tails_[kBlockQ / 8];                  // what rounding to 16 bits drops
};

}  // namespace rootdk::cuda::hopper
