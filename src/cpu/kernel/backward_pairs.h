#pragma once

// The weights and score gradients of a group of rows as operands of bf16 products: pairs of rows, and rows of ds.
// Included once per target: internal linkage.

#include "cpu/kernel/backward_scores.h"
#include "cpu/kernel/backward_scratch.h"

namespace rootdk::cpu {
namespace {

// A group of rows of a tile on columns that they need: first is a multiple of a panel.
struct GroupRun {
  int first_row, rows;
  int first, keys, columns;
};

// Rows as the depth of a product.
template <class Gemm>
int padded_rows(int rows) {
  return round_up(rows, Gemm::kDepthMultiple);
}

// Where every key is visible and the logit is the score times the scale: from scores and dP at once.
template <class Gemm>
void plain_pairs(const BackwardTile& tile, const GroupRun& run, const BackwardScratch<Gemm>& scratch, int stride) {
  const Vec scale = Simd::set1(tile.rule->scale);
  for (int i = 0; i < run.rows; i += 2) {
    const ptrdiff_t pair = static_cast<ptrdiff_t>(run.first_row + i) / 2 * stride;
    for (int t = run.first; t < run.first + run.columns; t += kPairOfVectors) {
      Vec p[2][2], ds[2][2];  // [row, half]
      for (int r = 0; r < 2; ++r) {
        const BackwardRow& row = tile.queries.rows[run.first_row + i + r];
        const Vec offset = Simd::set1(-row.lse), dot = Simd::set1(row.dot);
        const ptrdiff_t at = static_cast<ptrdiff_t>(i + r) * stride + t;
        for (int half = 0; half < 2; ++half) {
          const Vec score = Simd::load(scratch.scores + at + half * kWidth);
          p[r][half] = Gemm::exponential(Simd::fma(score, scale, offset));
          ds[r][half] = Simd::mul(p[r][half], Simd::sub(Simd::load(scratch.dp + at + half * kWidth), dot));
        }
        Gemm::store_weights(scratch.left_rows + at, ds[r][0], ds[r][1]);
        if (row.column_mass) {
          float weights[kPairOfVectors];
          Simd::store(weights, p[r][0]);
          Simd::store(weights + kWidth, p[r][1]);
          add_row(row.column_mass + (tile.keys.begin + t) * tile.mass_stride, tile.mass_stride, weights,
                  kPairOfVectors);
        }
      }
      for (int half = 0; half < 2; ++half) {
        Gemm::store_row_pair(scratch.weights + pair + t + half * kWidth, p[0][half], p[1][half]);
        Gemm::store_row_pair(scratch.gradients + pair + t + half * kWidth, ds[0][half], ds[1][half]);
      }
    }
  }
}

// The f32 rows of the group, scratch.scores being weights and scratch.dp being ds.
template <class Gemm>
void pair_rows(const GroupRun& run, const BackwardScratch<Gemm>& scratch, int stride) {
  auto row = [&](const float* rows, int r, int t) {
    return r < run.rows ? Simd::load(rows + r * stride + t) : Simd::zero();
  };
  for (int i = 0; i < padded_rows<Gemm>(run.rows); i += 2) {
    const ptrdiff_t pair = static_cast<ptrdiff_t>(run.first_row + i) / 2 * stride;
    for (int t = run.first; t < run.first + run.columns; t += kWidth) {
      Gemm::store_row_pair(scratch.weights + pair + t, row(scratch.scores, i, t), row(scratch.scores, i + 1, t));
      Gemm::store_row_pair(scratch.gradients + pair + t, row(scratch.dp, i, t), row(scratch.dp, i + 1, t));
    }
  }
  for (int i = 0; i < run.rows; ++i) {
    for (int t = run.first; t < run.first + run.columns; t += kPairOfVectors) {
      Gemm::store_weights(scratch.left_rows + i * stride + t, row(scratch.dp, i, t), row(scratch.dp, i, t + kWidth));
    }
  }
}

}  // namespace
}  // namespace rootdk::cpu
