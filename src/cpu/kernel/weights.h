#pragma once

// The second pass of the forward: exact weights, where the maximum and the sum of each row are known.
// Included once per target: internal linkage.

#include "cpu/kernel/forward.h"

namespace rootdk::cpu {
namespace {

// Weights of rows whose softmax is known, for column_mass and for the exact weights of chosen rows.
template <class Gemm>
class WeightsKernel : private ForwardKernel<Gemm> {
  using Base = ForwardKernel<Gemm>;
  using typename Base::ScoreTile;

 public:
  explicit WeightsKernel(const WeightsBlock& weights) : Base(weights.block), weights_(weights) {}

  void run() {
    this->group_ranges();
    const ForwardBlock& block = this->block_;
    for (int64_t tile = block.keys.begin; tile < block.keys.end; tile += this->tile_) {
      for (int group = 0; group * Base::kRows < block.row_count; ++group) {
        const auto [begin, end] = this->keys_of_tile(group, tile);
        const int first_row = group * Base::kRows;
        if (begin < end)
          weigh(this->score_tile(first_row, smaller(Base::kRows, block.row_count - first_row), begin, end));
      }
    }
  }

 private:
  void weigh(const ScoreTile& p) {
    this->score(p);
    const float scale = this->rule_.transforms ? 1.0f : this->rule_.scale;
    [[maybe_unused]] const TinyToZero tiny_to_zero;
    for (int i = 0; i < p.rows; ++i) {
      float* row = this->scratch_.scores + i * this->stride_;
      const int r = p.first_row + i;
      form_logits({row, p.first_key, p.keys, p.columns}, this->rule_, this->block_.rows[r]);
      const Vec factor = Simd::set1(weights_.factor[r]), offset = Simd::set1(-(weights_.max[r] * scale));
      for (int t = 0; t < p.columns; t += kWidth) {
        const Vec x = Simd::fma(Simd::load(row + t), Simd::set1(scale), offset);
        Simd::store(row + t, Simd::mul(exp2_of_score(x), factor));
      }
      if (weights_.column_sums) add_columns(p, row);
      if (weights_.weights) {
        float* to = weights_.weights[r] + p.first_key * weights_.weights_stride;
        for (int t = 0; t < p.keys; ++t) to[t * weights_.weights_stride] = row[t];
      }
    }
  }

  void add_columns(const ScoreTile& p, const float* row) {
    float* sums = weights_.column_sums + (p.first_key - this->block_.keys.begin);
    int t = 0;
    for (; t + kWidth <= p.keys; t += kWidth)
      Simd::store(sums + t, Simd::add(Simd::load(sums + t), Simd::load(row + t)));
    for (; t < p.keys; ++t) sums[t] += row[t];
  }

  const WeightsBlock& weights_;
};

}  // namespace
}  // namespace rootdk::cpu
