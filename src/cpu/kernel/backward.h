#pragma once

// The backward pass of one block of queries against one block of keys, five products:
//     s = q k^T;  dP = g_out v^T;  p and ds from them;  dq += ds k;  dv += p^T g_out;  dk += ds^T q
// s, dP and dq go group by group of register rows, the transposed products follow for the whole tile. Parts of the tile
// that no row of a group sees are zero, and the products leave them out where they can. Included once per target:
// internal linkage.

#include "cpu/kernel/backward_pairs.h"
#include "cpu/kernel/backward_scores.h"
#include "cpu/kernel/backward_scratch.h"
#include "cpu/kernel/gemm_f32.h"

namespace rootdk::cpu {
namespace {

template <class Gemm>
class BackwardKernel {
 public:
  using Element = typename Gemm::Element;
  using Unit = typename Gemm::Unit;
  using Scratch = BackwardScratch<Gemm>;
  static constexpr int kRows = Gemm::kRows;
  static constexpr int kPanel = Gemm::kPanel;
  static constexpr bool kTransposedSums = false;

  // The operands of a tile stay in L2. A multiple of kRows leaves no rest in the transposed products.
  static int key_block(int head_dim, int value_dim) { return head_dim + value_dim <= 512 ? 192 : 128; }

  explicit BackwardKernel(const BackwardTile& tile)
      : tile_(tile),
        rule_(*tile.rule),
        queries_(tile.queries),
        keys_(tile.keys),
        block_(key_block(tile.head_dim, tile.value_dim)),
        stride_(Scratch::stride(block_)),
        columns_(round_up(tile.keys.keys, larger(kPairOfVectors, Gemm::kDepthMultiple))),
        depth_(round_up(tile.head_dim, Gemm::kDepthMultiple)),
        value_depth_(round_up(tile.value_dim, Gemm::kDepthMultiple)),
        groups_((tile.queries.count + kRows - 1) / kRows),
        scratch_(tile.scratch, block_) {}

  void run() {
    run([&](const Transposed& product) { add_transposed(product); });
  }

 protected:
  // Columns of the block that some row of a group sees, or rows that see some column; begin is a multiple of kPanel.
  struct Range {
    int begin, end;
  };
  // to [keys, dim] += left^T right, left [rows, keys] being weights or ds, right the panels of a block of queries.
  struct Transposed {
    const Unit* left;
    const Element* right;
    bool not_finite;
    int dim;
    float* to;
  };

  template <class AddTransposed>
  void run(AddTransposed add_transposed) {
    bool any = false;
    for (int group = 0; group < groups_; ++group) any |= find_range(group);
    if (!any) return;
    for (int group = 0; group < groups_; ++group) {
      clear_outside(group);
      if (ranges_[group].begin >= ranges_[group].end) continue;
      for_each_run(group, [&](const Run& run) { score_gradients(run); });
      if (rule_.score == ScoreKind::additive) {
        add_additive(group);
      } else if (queries_.grad_q) {
        add_to_queries(group);
      }
    }
    if (keys_.grad_v) {
      add_transposed({.left = scratch_.weights,
                      .right = static_cast<const Element*>(queries_.grad_out_rows),
                      .not_finite = queries_.grad_out_not_finite,
                      .dim = tile_.value_dim,
                      .to = keys_.grad_v});
    }
    if (keys_.grad_k && rule_.score != ScoreKind::additive) {
      add_transposed({.left = scratch_.gradients,
                      .right = static_cast<const Element*>(queries_.q_rows),
                      .not_finite = queries_.q_not_finite,
                      .dim = tile_.head_dim,
                      .to = keys_.grad_k});
    }
  }

  // The rows of the groups that see any of the keys [key, key + keys) of the block.
  Range rows_that_see(int key, int keys) const {
    int first = 0, last = groups_;
    auto sees = [&](int group) { return ranges_[group].begin < key + keys && ranges_[group].end > key; };
    while (first < last && !sees(first)) ++first;
    while (last > first && !sees(last - 1)) --last;
    return {first * kRows, smaller(last * kRows, queries_.count)};
  }

  static float unit_part(Unit unit, int part) {
    if constexpr (Scratch::kPairs) {
      return Gemm::widen(static_cast<Element>(unit >> (16 * part)));
    } else {
      return unit;
    }
  }

 private:
  using Run = GroupRun;

  static int padded(int rows) { return padded_rows<Gemm>(rows); }
  int group_rows(int group) const { return smaller(kRows, queries_.count - group * kRows); }

  bool find_range(int group) {
    int64_t begin = keys_.keys, end = 0;
    for (int r = group * kRows; r < group * kRows + group_rows(group); ++r) {
      const QueryRow& row = queries_.rows[r].query;
      if (row.key_begin >= row.key_end) continue;
      if (row.key_begin - keys_.begin < begin) begin = row.key_begin - keys_.begin;
      if (row.key_end - keys_.begin > end) end = row.key_end - keys_.begin;
    }
    Range range{begin > 0 ? static_cast<int>(begin) / kPanel * kPanel : 0,
                end < keys_.keys ? (end > 0 ? static_cast<int>(end) : 0) : keys_.keys};
    if (rule_.has_block_mask) {
      while (range.begin < range.end && !needed(group, range.begin, range.end)) range.begin += kPanel;
    }
    ranges_[group] = range;
    return range.begin < range.end;
  }

  // Whether block_mask keeps any of the columns [first, first + panel) for any row of the group.
  bool needed(int group, int first, int end) const {
    const int64_t key = keys_.begin + first, last = keys_.begin + smaller(first + kPanel, end) - 1;
    for (int r = group * kRows; r < group * kRows + group_rows(group); ++r) {
      const uint8_t* blocks = queries_.rows[r].query.block_mask;
      for (int64_t b = key / rule_.block_keys; b <= last / rule_.block_keys; ++b) {
        if (blocks[b * rule_.block_mask_stride]) return true;
      }
    }
    return false;
  }

  // Calls body for the runs of panels that some row of the group needs.
  template <class Body>
  void for_each_run(int group, Body body) const {
    const Range range = ranges_[group];
    auto run = [&](int begin, int end) {
      return Run{group * kRows, group_rows(group), begin, end - begin,
                 round_up(end - begin, larger(kPairOfVectors, Gemm::kDepthMultiple))};
    };
    if (!rule_.has_block_mask) return body(run(range.begin, range.end));
    for (int first = range.begin; first < range.end;) {
      if (!needed(group, first, range.end)) {
        first += kPanel;
        continue;
      }
      int stop = first + kPanel;
      while (stop < range.end && needed(group, stop, range.end)) stop += kPanel;
      body(run(first, smaller(stop, range.end)));
      first = stop;
    }
  }

  // Zeroes what no run of the group will write.
  void clear_outside(int group) {
    int position = 0;
    if (ranges_[group].begin < ranges_[group].end) {
      for_each_run(group, [&](const Run& run) {
        clear(group, position, run.first);
        position = run.first + run.columns;
      });
    }
    clear(group, position, columns_);
  }

  void clear(int group, int begin, int end) {
    const int first = group * kRows / Gemm::kUnit, count = padded(group_rows(group)) / Gemm::kUnit;
    for (int r = first; r < first + count; ++r) {
      for (int t = begin; t < end; ++t) {
        scratch_.weights[r * stride_ + t] = 0;
        scratch_.gradients[r * stride_ + t] = 0;
      }
    }
    if constexpr (Scratch::kPairs) {
      for (int i = 0; i < group_rows(group); ++i) {
        for (int t = begin; t < end; ++t) scratch_.left_rows[i * stride_ + t] = 0;
      }
    }
  }

  // The f32 rows of a group: scores, then weights; dP, then ds.
  float* score_row(int row) const {
    if constexpr (Scratch::kPairs) {
      return scratch_.scores + row % kRows * stride_;
    } else {
      return scratch_.weights + row * stride_;
    }
  }
  float* dp_row(int row) const {
    if constexpr (Scratch::kPairs) {
      return scratch_.dp + row % kRows * stride_;
    } else {
      return scratch_.gradients + row * stride_;
    }
  }

  void score_gradients(const Run& run) {
    multiply_scores(run);
    multiply(run, queries_.grad_out_left, keys_.v, value_depth_, dp_row(run.first_row));
    const bool is_special = special(run);
    if constexpr (Scratch::kPairs) {
      if (!is_special && run.rows == padded(run.rows)) return plain_pairs(tile_, run, scratch_, stride_);
    }
    for (int r = run.first_row; r < run.first_row + run.rows; ++r) {
      const BackwardRow& row = queries_.rows[r];
      float* scores = score_row(r) + run.first;
      float* dp = dp_row(r) + run.first;
      const int64_t first_key = keys_.begin + run.first;
      if (is_special) {
        special_gradient<Gemm>({scores, first_key, run.keys, run.columns}, dp, tile_, row, scratch_.slopes,
                               scratch_.numbers);
        continue;
      }
      plain_gradient<Gemm>(scores, dp, run.columns, row, rule_.scale);
      if (row.column_mass) {
        add_row(row.column_mass + first_key * tile_.mass_stride, tile_.mass_stride, scores, run.keys);
      }
    }
    if constexpr (Scratch::kPairs) pair_rows(run, scratch_, stride_);
  }

  // Whether the run needs more than scale and exponential: a mask that cuts it, or a term of the call.
  bool special(const Run& run) const {
    if (rule_.transforms || rule_.has_mask || rule_.has_block_mask || rule_.dropout_threshold || tile_.entropy ||
        run.keys != run.columns) {
      return true;
    }
    const int64_t first = keys_.begin + run.first;
    for (int r = run.first_row; r < run.first_row + run.rows; ++r) {
      const QueryRow& row = queries_.rows[r].query;
      if (row.key_begin > first || row.key_end < first + run.keys) return true;
    }
    return false;
  }

  void multiply_scores(const Run& run) {
    if constexpr (!Scratch::kPairs) {
      if (rule_.score == ScoreKind::additive) {
        for (int r = run.first_row; r < run.first_row + run.rows; ++r) {
          const float* q = static_cast<const float*>(queries_.q_left) + static_cast<ptrdiff_t>(r) * depth_;
          for (int t = run.first; t < run.first + run.columns; t += kPanel) {
            additive_scores(queries_.rows[r].query, rule_.additive_stride, q,
                            static_cast<const float*>(keys_.k) + static_cast<ptrdiff_t>(t) * depth_, kPanel,
                            tile_.head_dim, smaller(kPanel, run.first + run.columns - t), score_row(r) + t);
          }
        }
        return;
      }
    }
    multiply(run, queries_.q_left, keys_.k, depth_, score_row(run.first_row));
  }

  // to [rows, run] = left panels, panels being those of transposed keys or values.
  void multiply(const Run& run, const void* left, const void* panels, int depth, float* to) const {
    const auto* rows = static_cast<const Element*>(left) + static_cast<ptrdiff_t>(run.first_row) * depth;
    const Left<Unit> a{reinterpret_cast<const Unit*>(rows), depth / Gemm::kUnit};
    for (int t = run.first; t < run.first + run.columns; t += kPanel) {
      Gemm::multiply(run.rows, smaller(kPanel, run.first + run.columns - t), a,
                     static_cast<const Element*>(panels) + static_cast<ptrdiff_t>(t) * depth, depth, to + t, stride_);
    }
  }

  // dq [rows, head_dim] += ds k
  void add_to_queries(int group) {
    const Range range = ranges_[group];
    const int rows = group_rows(group), head_columns = round_up(tile_.head_dim, kPanel);
    const int depth = round_up(range.end - range.begin, Gemm::kDepthMultiple);
    const Element* ds = left_rows(group) + range.begin;
    const Element* k = static_cast<const Element*>(keys_.k_rows) + static_cast<ptrdiff_t>(range.begin) * kPanel;
    float* to = queries_.grad_q + static_cast<ptrdiff_t>(group * kRows) * head_columns;
    if (keys_.k_not_finite) {
      auto left = [&](int i, int t) { return Gemm::widen(ds[i * stride_ + t]); };
      return add_carefully(rows, range.end - range.begin, left, k, static_cast<ptrdiff_t>(block_) * kPanel,
                           tile_.head_dim, to);
    }
    const Left<Unit> a{reinterpret_cast<const Unit*>(ds), stride_ / Gemm::kUnit};
    for (int d = 0; d < tile_.head_dim; d += kPanel, k += static_cast<ptrdiff_t>(block_) * kPanel) {
      Gemm::multiply_add(rows, smaller(kPanel, tile_.head_dim - d), a, k, depth, to + d, head_columns, kOnes);
    }
  }

  const Element* left_rows(int group) const {
    if constexpr (Scratch::kPairs) {
      return scratch_.left_rows;
    } else {
      return scratch_.gradients + static_cast<ptrdiff_t>(group * kRows) * stride_;
    }
  }

  // Panel by panel, which stays in L1 for all keys.
  void add_transposed(const Transposed& x) {
    const int to_stride = round_up(x.dim, kPanel);
    const Element* panel = x.right;
    for (int d = 0; d < x.dim; d += kPanel, panel += static_cast<ptrdiff_t>(round_up(kBackwardRows, kPanel)) * kPanel) {
      for (int key = 0; key < keys_.keys; key += kRows) {
        const int keys = smaller(kRows, keys_.keys - key);
        const Range rows = rows_that_see(key, keys);
        if (rows.begin >= rows.end) continue;
        float* to = x.to + static_cast<ptrdiff_t>(key) * to_stride + d;
        const Unit* left = x.left + static_cast<ptrdiff_t>(rows.begin / Gemm::kUnit) * stride_ + key;
        const Element* right = panel + static_cast<ptrdiff_t>(rows.begin) * kPanel;
        if (x.not_finite) {
          auto weight = [&](int i, int k) { return unit_part(left[k / Gemm::kUnit * stride_ + i], k % Gemm::kUnit); };
          add_carefully(keys, rows.end - rows.begin, weight, right, 0, smaller(kPanel, x.dim - d), to, to_stride);
          continue;
        }
        Gemm::multiply_add(keys, smaller(kPanel, x.dim - d), Left<Unit>{left, 1, stride_}, right,
                           round_up(rows.end - rows.begin, Gemm::kDepthMultiple), to, to_stride, kOnes);
      }
    }
  }

  // to [rows, dim] += left right where right holds an infinity or a NaN: a left of zero, which a mask leaves, must not
  // meet it.
  template <class LeftAt>
  void add_carefully(int rows, int depth, LeftAt left, const Element* panel, ptrdiff_t panel_stride, int dim, float* to,
                     int to_stride = 0) const {
    if (to_stride == 0) to_stride = round_up(dim, kPanel);
    for (int i = 0; i < rows; ++i) {
      for (int k = 0; k < depth; ++k) {
        const float weight = left(i, k);
        if (weight == 0.0f) continue;
        for (int d = 0; d < dim; ++d) {
          const int index = (k / Gemm::kUnit * kPanel + d % kPanel) * Gemm::kUnit + k % Gemm::kUnit;
          to[static_cast<ptrdiff_t>(i) * to_stride + d] +=
              weight * Gemm::widen(panel[d / kPanel * panel_stride + index]);
        }
      }
    }
  }

  // The additive score, t = tanh(q + k): dq and dk += g a (1 - t^2), da += g t, vectors running over head_dim.
  void add_additive(int group) {
    if constexpr (!Scratch::kPairs) {
      const int head_columns = round_up(tile_.head_dim, kPanel);
      const Vec one = Simd::set1(1.0f);
      for (int r = group * kRows; r < group * kRows + group_rows(group); ++r) {
        const BackwardRow& row = queries_.rows[r];
        const float* ds = dp_row(r);
        const float* q = static_cast<const float*>(queries_.q_left) + static_cast<ptrdiff_t>(r) * depth_;
        for (int key = ranges_[group].begin; key < ranges_[group].end; ++key) {
          if (ds[key] == 0.0f) continue;
          const Vec g = Simd::set1(ds[key]);
          for (int d = 0; d < tile_.head_dim; d += kWidth) {
            const float* k = static_cast<const float*>(keys_.k_rows) +
                             static_cast<ptrdiff_t>(d / kPanel) * block_ * kPanel +
                             static_cast<ptrdiff_t>(key) * kPanel + d % kPanel;
            const int dims = smaller(kWidth, tile_.head_dim - d);
            const Vec left = dims == kWidth ? Simd::load(q + d) : Simd::load_first(q + d, dims);
            const Vec t = tanh(Simd::add(left, Simd::load(k)));
            const Vec slope = Simd::mul(Simd::sub(one, t), Simd::add(one, t));
            const Vec to_both = Simd::mul(g, Simd::mul(Simd::load(row.additive_v + d), slope));
            if (queries_.grad_q) add_to(queries_.grad_q + static_cast<ptrdiff_t>(r) * head_columns + d, to_both);
            if (keys_.grad_k) add_to(keys_.grad_k + static_cast<ptrdiff_t>(key) * head_columns + d, to_both);
            if (row.additive) add_to(row.additive + d, Simd::mul(g, t));
          }
        }
      }
    }
  }
  static void add_to(float* to, Vec x) { Simd::store(to, Simd::add(Simd::load(to), x)); }

  alignas(64) static constexpr float kOnes[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  static_assert(kRows <= 32 && kRows % Gemm::kUnit == 0);

 protected:
  const BackwardTile& tile_;
  const ScoreRule& rule_;
  const BackwardQueries& queries_;
  const BackwardKeys& keys_;
  const int block_;        // keys of a block
  const int stride_;       // of the rows of a tile
  const int columns_;      // keys of this block, rounded up
  const int depth_;        // head_dim padded
  const int value_depth_;  // value_dim padded
  const int groups_;
  Scratch scratch_;
  Range ranges_[kBackwardRows];
};

}  // namespace
}  // namespace rootdk::cpu
