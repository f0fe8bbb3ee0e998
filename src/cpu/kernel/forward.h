#pragma once

// The fused forward pass of one block of query rows over the packed keys of a round:
//     s = q k^T;  logits;  rescale by the new maximum;  p = 2^(logit - max);  out += p v
// for each tile of keys and, inside it, each group of kRows rows, so that all rows of the block read a tile from L2.
// Included once per target: internal linkage.

#include "cpu/kernel/dropout.h"
#include "cpu/kernel/fetch.h"
#include "cpu/kernel/gemm_f32.h"
#include "cpu/kernel/round_weights.h"
#include "cpu/kernel/softmax.h"

namespace rootdk::cpu {
namespace {

// Working memory of one thread, at 64-byte boundaries.
template <class Gemm>
struct ForwardScratch {
  float* scores;                    // [Gemm::kRows, stride]
  typename Gemm::Element* weights;  // the same rows: weights overwrite the scores
  float* factors;                   // [Gemm::kRows]
  uint16_t* numbers;                // [tile rounded up to 8 vectors]

  static constexpr int stride(int tile) { return tile + Gemm::kRowPadding; }
  static constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr size_t score_bytes(int tile) { return aligned(sizeof(float) * Gemm::kRows * stride(tile)); }
  static constexpr size_t factor_bytes() { return aligned(sizeof(float) * Gemm::kRows); }
  static size_t lane_bytes(int tile) { return aligned(sizeof(uint16_t) * round_up(tile, 8 * kWidth)); }
  static size_t bytes(int tile) { return score_bytes(tile) + factor_bytes() + lane_bytes(tile); }

  ForwardScratch(void* memory, int tile) {
    auto* p = static_cast<unsigned char*>(memory);
    scores = reinterpret_cast<float*>(p);
    weights = reinterpret_cast<typename Gemm::Element*>(p);
    p += score_bytes(tile);
    factors = reinterpret_cast<float*>(p);
    p += factor_bytes();
    numbers = reinterpret_cast<uint16_t*>(p);
  }
};

template <class Gemm>
class ForwardKernel {
 public:
  using Element = typename Gemm::Element;
  using Unit = typename Gemm::Unit;
  static constexpr int kRows = Gemm::kRows;
  static constexpr int kPanel = Gemm::kPanel;
  static constexpr int kMaxGroups = (Gemm::kBlockRows + kRows - 1) / kRows;  // of rows in a block

  // A tile of packed keys and values stays in L2, a group's scores in L1.
  static int tile_keys(int head_dim, int value_dim) {
    const int element = static_cast<int>(sizeof(Element));
    return (head_dim + value_dim) * element <= Gemm::kTileRowBytes ? Gemm::kTileKeys : Gemm::kTileKeys / 2;
  }

  static size_t scratch_bytes(int head_dim, int value_dim) {
    return ForwardScratch<Gemm>::bytes(tile_keys(head_dim, value_dim));
  }

  explicit ForwardKernel(const ForwardBlock& block)
      : block_(block),
        rule_(*block.rule),
        tile_(tile_keys(block.head_dim, block.value_dim)),
        stride_(ForwardScratch<Gemm>::stride(widest_score_tile(block, tile_))),
        weight_stride_(Gemm::kUnit * stride_),
        depth_(round_up(block.head_dim, Gemm::kDepthMultiple)),
        scratch_(block.scratch, tile_),
        fetcher_(block.soon, products()) {}

  void run() {
    for_each_score_tile([&](const ScoreTile& p) { attend(p); });
    clear_empty();
  }

 protected:
  struct Range {
    int64_t begin, end;
  };
  // The scores of one group of rows over the keys of one tile that some of them see.
  struct ScoreTile {
    int first_row, rows;
    int64_t first_key;
    int keys, columns;
  };

  // Rows of narrow score tiles are stored close together.
  static int widest_score_tile(const ForwardBlock& block, int tile) {
    const int64_t keys = block.keys.end - block.keys.begin;
    return keys < tile ? round_up(static_cast<int>(keys), larger(kPairOfVectors, Gemm::kDepthMultiple)) : tile;
  }

  // Calls attend for every group of rows on every tile that it sees, tile by tile.
  template <class Attend>
  void for_each_score_tile(Attend attend) {
    group_ranges();
    const int groups = (block_.row_count + kRows - 1) / kRows;
    for (int group = 0; group < groups; ++group) empty_[group] = block_.first_keys;
    for (int64_t tile = block_.keys.begin; tile < block_.keys.end; tile += tile_) {
      for (int group = 0; group < groups; ++group) visit(group, tile, attend);
    }
  }

  // Rows that met no keys.
  void clear_empty() {
    for (int first = 0; first < block_.row_count; first += kRows) {
      if (empty_[first / kRows]) clear_out(first, smaller(kRows, block_.row_count - first));
    }
  }

  // The keys that any row of a group sees.
  void group_ranges() {
    for (int group = 0; group * kRows < block_.row_count; ++group) {
      Range range{block_.keys.end, block_.keys.begin};
      const int end = smaller((group + 1) * kRows, block_.row_count);
      for (int r = group * kRows; r < end; ++r) {
        const QueryRow& row = block_.rows[r];
        if (row.key_begin >= row.key_end) continue;
        if (row.key_begin < range.begin) range.begin = row.key_begin;
        if (row.key_end > range.end) range.end = row.key_end;
      }
      ranges_[group] = range;
    }
  }

  // The keys of a tile that any row of a group sees, from the start of a panel on.
  Range keys_of_tile(int group, int64_t tile) const {
    const Range range = ranges_[group];
    const int64_t tile_end = tile + tile_ < block_.keys.end ? tile + tile_ : block_.keys.end;
    return {range.begin > tile ? range.begin / kPanel * kPanel : tile, range.end < tile_end ? range.end : tile_end};
  }

  template <class Attend>
  void visit(int group, int64_t tile, Attend& attend) {
    const auto [begin, end] = keys_of_tile(group, tile);
    if (begin >= end) return;
    const int first_row = group * kRows, rows = smaller(kRows, block_.row_count - first_row);
    if (!rule_.has_block_mask) return attend(score_tile(first_row, rows, begin, end));
    // Block-sparse: runs of panels that some row needs.
    for (int64_t key = begin; key < end;) {
      if (!needed(first_row, rows, key, end)) {
        key += kPanel;
        continue;
      }
      int64_t stop = key + kPanel;
      while (stop < end && needed(first_row, rows, stop, end)) stop += kPanel;
      attend(score_tile(first_row, rows, key, stop < end ? stop : end));
      key = stop;
    }
  }

  ScoreTile score_tile(int first_row, int rows, int64_t begin, int64_t end) const {
    const int keys = static_cast<int>(end - begin);
    return {first_row, rows, begin, keys, round_up(keys, larger(kPairOfVectors, Gemm::kDepthMultiple))};
  }

  // Whether block_mask keeps any of the keys [key, key + panel) for any row of the group.
  bool needed(int first_row, int rows, int64_t key, int64_t end) const {
    const int64_t last = (key + kPanel < end ? key + kPanel : end) - 1;
    for (int r = first_row; r < first_row + rows; ++r) {
      for (int64_t b = key / rule_.block_keys; b <= last / rule_.block_keys; ++b) {
        if (block_.rows[r].block_mask[b * rule_.block_mask_stride]) return true;
      }
    }
    return false;
  }

  void attend(const ScoreTile& p) {
    score(p);
    softmax(p);
    if (values_finite(p)) {
      add_values(p);
    } else {
      add_values_carefully(p);
    }
  }

  void softmax(const ScoreTile& p) {
    const bool stats = block_.state.weighted != nullptr;
    if (special(p)) {
      stats ? softmax<true, true>(p) : softmax<true, false>(p);
    } else {
      stats ? softmax<false, true>(p) : softmax<false, false>(p);
    }
  }

  bool values_finite(const ScoreTile& p) const {
    const uint8_t* not_finite = block_.keys.values_not_finite;
    return !not_finite || !not_finite[(p.first_key - block_.keys.begin) / tile_];
  }

  // Whether the score tile needs more than scale and exponential: a mask that cuts it, or a term of the call.
  bool special(const ScoreTile& p) const {
    if (rule_.transforms || rule_.has_mask || rule_.has_block_mask || rule_.dropout_threshold || rule_.rounds_weights ||
        block_.pooled.segments || p.keys != p.columns) {
      return true;
    }
    for (int r = p.first_row; r < p.first_row + p.rows; ++r) {
      if (block_.rows[r].key_begin > p.first_key || block_.rows[r].key_end < p.first_key + p.keys) return true;
    }
    return false;
  }

  // About how many products of panels the block needs.
  int products() const {
    const int groups = (block_.row_count + kRows - 1) / kRows;
    const auto keys = static_cast<int>(block_.keys.end - block_.keys.begin);
    const int value_panels = (block_.value_dim + kPanel - 1) / kPanel;
    return groups * ((keys + kPanel - 1) / kPanel + (keys + tile_ - 1) / tile_ * value_panels);
  }

  const Element* query(int r) const { return static_cast<const Element*>(block_.q) + r * block_.q_stride; }

  // scores [rows, columns] = q k^T
  void score(const ScoreTile& p) {
    const auto* keys = static_cast<const Element*>(block_.keys.keys) +
                       (p.first_key - block_.keys.begin) * static_cast<int64_t>(depth_);
    for (int t = 0; t < p.columns; t += kPanel, keys += static_cast<ptrdiff_t>(kPanel) * depth_) {
      const int columns = smaller(kPanel, p.columns - t);
      fetcher_.fetch_some();
      if constexpr (Gemm::kUnit == 1) {
        if (rule_.score == ScoreKind::additive) {
          for (int i = 0; i < p.rows; ++i) {
            additive_scores(block_.rows[p.first_row + i], rule_.additive_stride, query(p.first_row + i), keys, kPanel,
                            block_.head_dim, columns, scratch_.scores + i * stride_ + t);
          }
          continue;
        }
      }
      const Left<Unit> q{reinterpret_cast<const Unit*>(query(p.first_row)), block_.q_stride / Gemm::kUnit};
      Gemm::multiply(p.rows, columns, q, keys, depth_, scratch_.scores + t, stride_);
    }
  }

  template <bool kSpecial, bool kStats>
  void softmax(const ScoreTile& p) {
    const float scale = rule_.transforms ? 1.0f : rule_.scale;
    for (int i = 0; i < p.rows; ++i) {
      float* row = scratch_.scores + i * stride_;
      if constexpr (kSpecial) {
        form_logits({row, p.first_key, p.keys, p.columns}, rule_, block_.rows[p.first_row + i]);
      }
      scratch_.factors[i] = raise_max<kStats>(block_.state, p.first_row + i, row_max(row, p.columns), scale);
    }
    [[maybe_unused]] const TinyToZero tiny_to_zero;
    for (int i = 0; i < p.rows; ++i) {
      const int r = p.first_row + i;
      float* row = scratch_.scores + i * stride_;
      Element* weights = scratch_.weights + i * weight_stride_;
      const float max = kSpecial && block_.state.max[r] == kMinusInfinity ? 0.0f : block_.state.max[r] * scale;
      RowSums sums;
      if (kSpecial && (rule_.dropout_threshold || rule_.rounds_weights || block_.pooled.segments)) {
        sums = exponentials<FloatWeights, kStats>(row, p.columns, scale, max, row);
        pool_and_drop(p, i, max);
        for (int t = 0; t < p.columns; t += kPairOfVectors) {
          Gemm::store_weights(weights + t, Simd::load(row + t), Simd::load(row + t + kWidth));
        }
      } else {
        sums = exponentials<Gemm, kStats>(row, p.columns, scale, max, weights);
      }
      block_.state.sum[r] += sums.sum;
      if constexpr (kStats) {
        block_.state.weighted[r] += sums.weighted;
        block_.state.squares[r] += sums.squares;
      }
    }
  }

  // The weights of row i are f32 and overwrite its scores.
  void pool_and_drop(const ScoreTile& p, int i, float scaled_max) {
    float* row = scratch_.scores + i * stride_;
    const QueryRow& query = block_.rows[p.first_row + i];
    if (block_.pooled.segments) pool(p, i, row, scaled_max);
    if (rule_.rounds_weights) round_to_e4m3(row, p.columns);
    if (rule_.dropout_threshold) {
      const DropoutCounter counter{rule_.dropout_seed, query.query, query.head, query.batch};
      drop_weights(counter, rule_.dropout_threshold, rule_.dropout_first_key + p.first_key, p.columns, row,
                   scratch_.numbers);
    }
  }

  void pool(const ScoreTile& p, int i, const float* row, float scaled_max) {
    const PooledSegments& pooled = block_.pooled;
    const int64_t base = (p.first_row + i) * pooled.segments;
    int64_t s = 0, after = pooled.segments;  // ends as the last segment that begins at or before the score tile
    while (after - s > 1) {
      const int64_t middle = (s + after) / 2;
      (pooled.bounds[middle] <= p.first_key ? s : after) = middle;
    }
    for (; s < pooled.segments && pooled.bounds[s] < p.first_key + p.keys; ++s) {
      const int64_t begin = pooled.bounds[s] - p.first_key, end = pooled.bounds[s + 1] - p.first_key;
      float& sum = pooled.sums[base + s];
      float& max = pooled.maxima[base + s];
      // A segment may have begun in an earlier score tile of the same key tile, under a lower maximum.
      if (sum != 0.0f) sum *= exp2(max - scaled_max);
      sum += sum_of(row, begin > 0 ? static_cast<int>(begin) : 0, end < p.keys ? static_cast<int>(end) : p.keys);
      max = scaled_max;
    }
  }

  static float sum_of(const float* row, int begin, int end) {
    Vec sum = Simd::zero();
    int t = begin;
    for (; t + kWidth <= end; t += kWidth) sum = Simd::add(sum, Simd::load(row + t));
    if (t < end) sum = Simd::add(sum, Simd::load_first(row + t, end - t));
    return Simd::reduce_add(sum);
  }

  // out [rows, value_dim] = factor out + p v
  void add_values(const ScoreTile& p) {
    for_each_value_panel(p, [&](int, int, const Element* values) { return values; });
  }

  // Calls prepare(first column, columns, values) for each panel of the values of a score tile, and adds the product
  // with what it gives back.
  template <class Prepare>
  void for_each_value_panel(const ScoreTile& p, Prepare prepare) {
    const Left<Unit> weights{reinterpret_cast<const Unit*>(scratch_.weights), weight_stride_ / Gemm::kUnit};
    const auto* values = static_cast<const Element*>(block_.keys.values) +
                         (p.first_key - block_.keys.begin) * static_cast<int64_t>(kPanel);
    const int depth = round_up(p.keys, Gemm::kDepthMultiple);
    float* out = block_.state.out + p.first_row * block_.state.out_stride;
    bool& empty = empty_[p.first_row / kRows];
    for (int d = 0; d < block_.value_dim; d += kPanel, values += block_.keys.value_stride) {
      const int columns = smaller(kPanel, block_.value_dim - d);
      fetcher_.fetch_some();
      const Element* panel = prepare(d, columns, values);
      if (empty) {
        Gemm::start_sum(p.rows, columns, weights, panel, depth, out + d, block_.state.out_stride);
      } else {
        Gemm::multiply_add(p.rows, columns, weights, panel, depth, out + d, block_.state.out_stride, scratch_.factors);
      }
    }
    empty = false;
  }

  void clear_out(int first_row, int rows) {
    for (int i = 0; i < rows; ++i) {  // rows of other heads may lie between them (CarriedRows)
      float* out = block_.state.out + (first_row + i) * block_.state.out_stride;
      for (int d = 0; d < block_.value_dim; ++d) out[d] = 0.0f;
    }
  }

  // The same where a value is infinite or NaN: a weight of zero, which a mask leaves, must not meet it. The products
  // are those of values without them, so that rows that see none of them keep their bits; then they join the rows that
  // do.
  void add_values_carefully(const ScoreTile& p) {
    alignas(64) Element finite[Gemm::kTileKeys * kPanel];
    const auto elements = static_cast<size_t>(round_up(p.keys, Gemm::kDepthMultiple)) * kPanel;
    for_each_value_panel(p, [&](int, int, const Element* values) {
      for (size_t i = 0; i < elements; ++i) finite[i] = is_finite(Gemm::widen(values[i])) ? values[i] : Element{};
      return finite;
    });
    for (int t = 0; t < p.keys; ++t) {
      for (int d = 0; d < block_.value_dim; ++d) {
        const float value = value_at(p, t, d);
        if (is_finite(value)) continue;
        for (int i = 0; i < p.rows; ++i) {
          const float weight = Gemm::widen(scratch_.weights[i * weight_stride_ + t]);
          if (weight != 0.0f) block_.state.out[(p.first_row + i) * block_.state.out_stride + d] += weight * value;
        }
      }
    }
  }

  // Key by key, for AMX, whose product reads the packed values and no cleaned copy.
  void add_values_one_by_one(const ScoreTile& p) {
    bool& empty = empty_[p.first_row / kRows];
    if (empty) clear_out(p.first_row, p.rows);
    empty = false;
    for (int i = 0; i < p.rows; ++i) {
      float* out = block_.state.out + (p.first_row + i) * block_.state.out_stride;
      for (int d = 0; d < block_.value_dim; ++d) out[d] *= scratch_.factors[i];
      for (int t = 0; t < p.keys; ++t) {
        const float weight = Gemm::widen(scratch_.weights[i * weight_stride_ + t]);
        if (weight == 0.0f) continue;
        for (int d = 0; d < block_.value_dim; ++d) out[d] += weight * value_at(p, t, d);
      }
    }
  }

  static bool is_finite(float x) { return x - x == 0.0f; }

  // Value d of key t of a score tile.
  float value_at(const ScoreTile& p, int t, int d) const {
    const auto* panel = static_cast<const Element*>(block_.keys.values) + d / kPanel * block_.keys.value_stride;
    const int64_t key = p.first_key - block_.keys.begin + t;
    return Gemm::widen(panel[(key / Gemm::kUnit * kPanel + d % kPanel) * Gemm::kUnit + key % Gemm::kUnit]);
  }

  // Weights in f32 whatever the product reads.
  struct FloatWeights {
    using Element = float;
    static void store_weights(float* to, Vec first, Vec second) {
      Simd::store(to, first);
      Simd::store(to + kWidth, second);
    }
  };

  const ForwardBlock& block_;
  const ScoreRule& rule_;
  const int tile_;
  const int stride_;  // from row to row of scores
  const int weight_stride_;
  const int depth_;  // head_dim padded
  ForwardScratch<Gemm> scratch_;
  Fetcher fetcher_;
  Range ranges_[kMaxGroups];
  bool empty_[kMaxGroups];  // groups of rows whose part of state.out holds nothing yet
};

// out rows = state.out * factor, in the caller's element type.
inline void store_block(const ForwardBlock& block, const float* factor, ElementKind kind) {
  with_stored(kind, [&](auto stored) {
    for (int r = 0; r < block.row_count; ++r) {
      auto* to = static_cast<typename decltype(stored)::Type*>(block.rows[r].out);
      const float* from = block.state.out + r * block.state.out_stride;
      const Vec f = Simd::set1(factor[r]);
      int d = 0;
      for (; d + kWidth <= block.value_dim; d += kWidth) stored.store(to + d, Simd::mul(Simd::load(from + d), f));
      if (d < block.value_dim) {
        const int left = block.value_dim - d;
        stored.store_first(to + d, Simd::mul(Simd::load(from + d), f), left);
      }
    }
  });
}

}  // namespace
}  // namespace rootdk::cpu
