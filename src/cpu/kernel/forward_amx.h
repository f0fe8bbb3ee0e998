#pragma once

// The forward pass on AMX. The tile unit works beside the vector units, so three score tiles are under way at a time:
// while the vector units compute the softmax of one, the tile unit scores the next and adds the values of the one
// before. The processor overlaps the two only where their instructions are close together: one product of 2 x 2 tiles
// goes between a few exponentials. Included once per target: internal linkage.

#include "cpu/kernel/forward.h"
#include "cpu/kernel/gemm_amx.h"
#include "cpu/kernel/row_batch.h"

namespace rootdk::cpu {
namespace {

class AmxForward : private ForwardKernel<AmxGemm> {
  using Base = ForwardKernel<AmxGemm>;
  using Scratch = ForwardScratch<AmxGemm>;
  static constexpr int kBuffers = 2;

 public:
  using Base::tile_keys;
  static size_t scratch_bytes(int head_dim, int value_dim) {
    return kBuffers * Base::scratch_bytes(head_dim, value_dim);
  }

  explicit AmxForward(const ForwardBlock& block)
      : Base(block), buffers_{Scratch(block.scratch, tile_), Scratch(second_half(block), tile_)} {}

  void run() {
    for_each_score_tile([&](const ScoreTile& p) {
      advance(p);
      weighed_ = scored_;
      scored_ = {p, true};
    });
    for (int i = 0; i < 2; ++i) {
      advance({});
      weighed_ = scored_;
      scored_ = {};
    }
    clear_empty();
  }

 private:
  // The exponentials of AmxGemm, before they are rounded.
  struct ExactWeights : FloatWeights {
    static Vec exp2_of_score(Vec x) { return AmxGemm::exp2_of_score(x); }
  };

  struct Stage {
    ScoreTile tile;
    bool full;
  };

  static void* second_half(const ForwardBlock& block) {
    return static_cast<unsigned char*>(block.scratch) + Base::scratch_bytes(block.head_dim, block.value_dim);
  }

  // Scores of `next` (if it has keys), softmax of scored_, values of weighed_.
  void advance(const ScoreTile& next) {
    // Score tiles use the two buffers in turn: `next` follows weighed_, whose scores are no longer needed.
    Scratch& outer = buffers_[number_ % kBuffers];
    Scratch& inner = buffers_[(number_ + 1) % kBuffers];
    ++number_;
    TileProducts products;
    if (weighed_.full) {
      scratch_ = outer;
      if (values_finite(weighed_.tile)) {
        products.add(values_product(weighed_.tile));
      } else {
        add_values_one_by_one(weighed_.tile);
      }
    }
    if (next.keys > 0) products.add(scores_product(next, outer));
    for (int panel = 0; panel < products.panels(); ++panel) fetcher_.fetch_some();
    if (scored_.full) {
      scratch_ = inner;
      const ScoreTile& p = scored_.tile;
      products.spread_over(p.rows * (p.columns / kPairOfVectors + RowBatch::pauses(p.columns)));
      block_.state.weighted ? weigh<true>(p, products) : weigh<false>(p, products);
    }
    products.finish();
  }

  // The softmax of a score tile, with tile products in between.
  template <bool kStats>
  void weigh(const ScoreTile& p, TileProducts& products) {
    if (rule_.dropout_threshold) return softmax(p);
    if (special(p)) {
      for (int i = 0; i < p.rows; ++i) {
        float* row = scratch_.scores + i * stride_;
        form_logits({row, p.first_key, p.keys, p.columns}, rule_, block_.rows[p.first_row + i]);
      }
    }
    const float scale = rule_.transforms ? 1.0f : rule_.scale;
    const auto between = [&] { products.tick(); };
    for (int i = 0; i < p.rows; i += RowBatch::kRows) {
      const int rows = smaller(RowBatch::kRows, p.rows - i);
      RowBatch batch({scratch_.scores + i * stride_, stride_, rows, p.columns, scale}, block_.state, p.first_row + i);
      batch.raise_maxima<kStats>(scratch_.factors + i, between);
      if (block_.pooled.segments) {
        batch.exponentials<ExactWeights, kStats>(scratch_.scores + i * stride_, stride_, between);
        for (int r = i; r < i + rows; ++r) pool_row(p, r, scale);
      } else {
        batch.exponentials<AmxGemm, kStats>(scratch_.weights + i * weight_stride_, weight_stride_, between);
      }
    }
  }

  // The weights of row i are f32, in place of its scores.
  void pool_row(const ScoreTile& p, int i, float scale) {
    float* row = scratch_.scores + i * stride_;
    const float max = block_.state.max[p.first_row + i];
    pool(p, i, row, max == kMinusInfinity ? 0.0f : max * scale);
    for (int t = 0; t < p.columns; t += kPairOfVectors) {
      AmxGemm::store_weights(scratch_.weights + i * weight_stride_ + t, Simd::load(row + t),
                             Simd::load(row + t + kWidth));
    }
  }

  TileProducts::Product scores_product(const ScoreTile& p, const Scratch& scratch) const {
    const auto* keys = static_cast<const uint16_t*>(block_.keys.keys) + (p.first_key - block_.keys.begin) * depth_;
    return {.left = query(p.first_row),
            .left_stride = block_.q_stride,
            .right = keys,
            .right_stride = static_cast<ptrdiff_t>(kPanel) * depth_,
            .depth = depth_,
            .panels = p.columns / kPanel,
            .c = scratch.scores,
            .ldc = stride_,
            .two_rows = p.rows > AmxGemm::kTile,
            .from_zero = true};
  }

  // Scales the rows whose maximum rose, to which the product can then be added in the tiles.
  TileProducts::Product values_product(const ScoreTile& p) {
    bool& empty = empty_[p.first_row / kRows];
    float* out = block_.state.out + p.first_row * block_.state.out_stride;
    const auto* values = static_cast<const uint16_t*>(block_.keys.values) +
                         (p.first_key - block_.keys.begin) * static_cast<int64_t>(kPanel);
    const TileProducts::Product product{.left = scratch_.weights,
                                        .left_stride = weight_stride_,
                                        .right = values,
                                        .right_stride = block_.keys.value_stride,
                                        .depth = p.columns,
                                        .panels = static_cast<int>(block_.state.out_stride / kPanel),
                                        .c = out,
                                        .ldc = block_.state.out_stride,
                                        .two_rows = p.rows > AmxGemm::kTile,
                                        .from_zero = empty};
    if (!empty) scale_rows(p, out);
    empty = false;
    return product;
  }

  void scale_rows(const ScoreTile& p, float* out) {
    for (int i = 0; i < p.rows; ++i, out += block_.state.out_stride) {
      if (scratch_.factors[i] == 1.0f) continue;
      const Vec factor = Simd::set1(scratch_.factors[i]);
      for (int d = 0; d < block_.state.out_stride; d += kWidth) {
        Simd::store(out + d, Simd::mul(factor, Simd::load(out + d)));
      }
    }
  }

  Scratch buffers_[kBuffers];
  int number_ = 0;
  Stage scored_{}, weighed_{};
};

}  // namespace
}  // namespace rootdk::cpu
