#pragma once

// The softmax of one query row over a tile of a cache, and which keys of the tile the row attends to. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_scratch.h"
#include "cpu/kernel/softmax.h"

namespace rootdk::cpu {
namespace {

// exponentials() leaves the weights where the scores were.
struct WeightsInPlace {
  using Element = float;
  static void store_weights(float* to, Vec p0, Vec p1) {
    Simd::store(to, p0);
    Simd::store(to + kWidth, p1);
  }
};

// A block of query rows on a tile of keys, in the working memory of a kernel.
template <class Product>
class TileSoftmax {
 public:
  using Element = typename Product::Element;
  using KeyTile = Tile<typename Product::Lanes>;
  using TileVectors = Vec[KeyTile::kKeys / kWidth];

  // `careful`: a key whose weight is 0 adds nothing, even where its value is NaN or infinite.
  TileSoftmax(const DecodeBlock& block, bool careful)
      : block_(block),
        rule_(*block.rule),
        careful_(careful),
        row_blocks_((block.row_count + kRowBlock - 1) / kRowBlock),
        scaled_(block.cache.kind == CacheKind::i8 || block.cache.kind == CacheKind::f8e4m3),
        scratch_(block.scratch, block.head_dim, block.value_dim, row_blocks_) {}

 protected:
  static bool inside(int64_t begin, int64_t end, const KeyGap& gap) { return begin >= gap.begin && end <= gap.end; }

  float query_scale(int r) const { return scratch_.queries[r / kRowBlock].scales[r % kRowBlock]; }

  static Vec scales_of(const float* const (&scales)[KeyTile::kGroups], int v) {
    return Simd::load(scales[v * kWidth / kGroupKeys] + v * kWidth % kGroupKeys);
  }

  // row[t] *= scale of key t * factor.
  static void multiply(float* row, const KeyTile& tile, const float* const (&scales)[KeyTile::kGroups], float factor) {
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      for (int t = 0; t < tile.keys[g]; t += kWidth) {
        const Vec by = Simd::load_first(scales[g] + t, smaller(tile.keys[g] - t, kWidth));
        float* at = row + g * kGroupKeys + t;
        Simd::store(at, Simd::mul(Simd::load(at), Simd::mul(by, Simd::set1(factor))));
      }
    }
  }

  static bool apart(const KeyGap& gap, int64_t begin, int64_t end) {
    return gap.begin >= gap.end || gap.end <= begin || gap.begin >= end;
  }

  bool sees_whole(int r, const KeyTile& tile) const {
    const int64_t begin = tile.begin, end = begin + KeyTile::kKeys;
    return tile.total == KeyTile::kKeys && !has_masks() && block_.rows[r].key_begin <= begin &&
           block_.rows[r].key_end >= end && apart(block_.hidden[r], begin, end) && apart(block_.evicted, begin, end);
  }

  // Which keys a row attends to is not a matter of ranges alone.
  bool has_masks() const { return rule_.has_mask || rule_.has_block_mask; }

  // row[t] = x for the keys of the tile that row r does not see.
  void fill_unseen(int r, const KeyTile& tile, float* row, float x) const {
    auto fill = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin > 0 ? begin : 0; t < (end < KeyTile::kKeys ? end : KeyTile::kKeys); ++t) row[t] = x;
    };
    const QueryRow& query = block_.rows[r];
    fill(0, query.key_begin - tile.begin);
    fill(query.key_end - tile.begin, KeyTile::kKeys);
    fill(block_.hidden[r].begin - tile.begin, block_.hidden[r].end - tile.begin);
    fill(block_.evicted.begin - tile.begin, block_.evicted.end - tile.begin);
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      if (tile.keys[g] == 0) fill(g * kGroupKeys, (g + 1) * kGroupKeys);
    }
    if (!has_masks()) return;
    for (int t = 0; t < keys_of(tile); ++t) {
      const int64_t key = tile.begin + t;
      const bool kept = (!rule_.has_mask || query.mask[key * rule_.mask_stride]) &&
                        (!rule_.has_block_mask || query.block_mask[key / rule_.block_keys * rule_.block_mask_stride]);
      if (!kept) row[t] = x;
    }
  }

  // Up to the end of the chunk: beyond lie no bias and no mask.
  int keys_of(const KeyTile& tile) const {
    const int64_t left = block_.end - tile.begin;
    return left < KeyTile::kKeys ? static_cast<int>(left) : KeyTile::kKeys;
  }

  // The softmax of a row that sees the whole tile, with nothing but the scale between score and logit, in registers:
  // the bits of what softmax() does in several passes. Returns the factor on what was summed before.
  __attribute__((always_inline)) float plain_softmax(int r, const KeyTile& tile, const float* row,
                                                     TileVectors& weights) {
    constexpr int kVectors = KeyTile::kKeys / kWidth;
    const RowStates& state = block_.state;
    for (int v = 0; v < kVectors; ++v) weights[v] = Simd::load(row + v * kWidth);
    if (scaled_) {
      const Vec by = Simd::set1(query_scale(r));
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = Simd::mul(weights[v], Simd::mul(scales_of(tile.k_scales, v), by));
      }
    }
    Vec largest[2] = {weights[0], weights[1]};
    for (int v = 2; v < kVectors; ++v) largest[v % 2] = Simd::max(largest[v % 2], weights[v]);
    const float highest = Simd::reduce_max(Simd::max(largest[0], largest[1])) * rule_.scale;
    const float factor = raise_max<false>(state, r, highest, 1.0f);
    const Vec scale = Simd::set1(rule_.scale);
    const Vec offset = Simd::set1(state.max[r] == kMinusInfinity ? -0.0f : -state.max[r]);
    Vec sums[2] = {Simd::zero(), Simd::zero()};
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = exp2(Simd::fma(weights[v], scale, offset));
      sums[v % 2] = Simd::add(sums[v % 2], weights[v]);
    }
    state.sum[r] += Simd::reduce_add(Simd::add(sums[0], sums[1]));
    if (scaled_) {
      for (int v = 0; v < kVectors; ++v) weights[v] = Simd::mul(weights[v], scales_of(tile.v_scales, v));
    }
    return factor;
  }

  template <class S>
  static constexpr bool reduces_eight() {
    return requires { S::kReducesEight; };
  }

  // body(0), ... body(kRows - 1). In line where rows are short: those of 128 keys would be too much code.
  template <int kRows, class Body>
  __attribute__((always_inline)) static void for_rows(Body body) {
    if constexpr (KeyTile::kKeys <= 2 * kWidth) {
      unrolled<kRows>(body);
    } else {
      for (int i = 0; i < kRows; ++i) body(i);
    }
  }

  // plain_softmax() of kRows rows at a time, with the same bits: their maxima and sums are lanes of vectors. Calls
  // store(i, weights) for each row.
  template <class S, int kRows, class Store>
  void plain_softmax_of_rows(int first, float* scores, const KeyTile& tile, float* row_factors, Store store) {
    const RowStates& state = block_.state;
    const Vec before = S::load_first(state.max + first, kRows), here = maxima_of_rows<S, kRows>(first, scores, tile);
    const Vec after = S::select_less(before, here, here, before);
    Vec factors = S::set1(1.0f), sums = S::load_first(state.sum + first, kRows);
    if (S::any_less(before, here, kRows)) {
      factors = factors_of_rows<S>(before, here);
      sums = S::mul(sums, factors);
      S::store_first(state.max + first, after, kRows);
    }
    S::store_first(row_factors, factors, kRows);
    alignas(64) float offsets[kWidth];
    S::store(offsets, offsets_of_rows<S>(after));
    sums = S::add(sums, exponentials_of_rows<S, kRows>(scores, tile, offsets, store));
    S::store_first(state.sum + first, sums, kRows);
  }

  // The largest logit of each of kRows rows. Scores of quantised keys get their scales.
  template <class S, int kRows>
  __attribute__((always_inline)) Vec maxima_of_rows(int first, float* scores, const KeyTile& tile) const {
    constexpr int kVectors = KeyTile::kKeys / kWidth;
    Vec rows[8];
    for_rows<kRows>([&](int i) __attribute__((always_inline)) {
      float* row = scores + i * KeyTile::kKeys;
      Vec largest[2] = {S::set1(kMinusInfinity), S::set1(kMinusInfinity)};
      const Vec by = S::set1(query_scale(first + i));
      for (int v = 0; v < kVectors; ++v) {
        Vec score = S::load(row + v * kWidth);
        if (scaled_) {
          score = S::mul(score, S::mul(scales_of(tile.k_scales, v), by));
          S::store(row + v * kWidth, score);
        }
        largest[v % 2] = v < 2 ? score : S::max(largest[v % 2], score);
      }
      rows[i] = S::max(largest[0], largest[1]);
    });
    unrolled<8 - kRows>([&](int i) __attribute__((always_inline)) { rows[kRows + i] = rows[i]; });
    return S::mul(S::reduce_eight(rows, [](Vec a, Vec b) { return S::max(a, b); }), S::set1(rule_.scale));
  }

  // On what was summed under the maxima `before`, where those of a tile are `here`.
  template <class S>
  __attribute__((always_inline)) static Vec factors_of_rows(Vec before, Vec here) {
    return exp2(S::select_less(before, here, S::sub(before, here), S::zero()));
  }

  // What is added to logits. A row without a key keeps its logits of -inf.
  template <class S>
  __attribute__((always_inline)) static Vec offsets_of_rows(Vec max) {
    return S::select_less(S::set1(kMinusInfinity), max, S::sub(S::set1(-0.0f), max), S::set1(-0.0f));
  }

  // store(i, weights) for each of kRows rows. Returns the sums of the weights.
  template <class S, int kRows, class Store>
  __attribute__((always_inline)) Vec exponentials_of_rows(const float* scores, const KeyTile& tile,
                                                          const float* offsets, Store store) const {
    constexpr int kVectors = KeyTile::kKeys / kWidth;
    const Vec scale = S::set1(rule_.scale);
    Vec rows[8];
    for_rows<kRows>([&](int i) __attribute__((always_inline)) {
      const float* row = scores + i * KeyTile::kKeys;
      const Vec offset = S::set1(offsets[i]);
      TileVectors weights;
      Vec parts[2] = {S::zero(), S::zero()};
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = exp2(S::fma(S::load(row + v * kWidth), scale, offset));
        parts[v % 2] = S::add(parts[v % 2], weights[v]);
      }
      rows[i] = S::add(parts[0], parts[1]);
      for (int v = 0; scaled_ && v < kVectors; ++v) weights[v] = S::mul(weights[v], scales_of(tile.v_scales, v));
      store(i, weights);
    });
    unrolled<8 - kRows>([&](int i) __attribute__((always_inline)) { rows[kRows + i] = rows[i]; });
    return S::reduce_eight(rows, [](Vec a, Vec b) { return S::add(a, b); });
  }

  // The same for any row and tile.
  float softmax(int r, const KeyTile& tile, bool sees_all, float* row, TileVectors& weights) {
    if (scaled_) multiply(row, tile, tile.k_scales, query_scale(r));
    const float factor = block_.state.weighted ? exponentiate<true>(r, tile, sees_all, row)
                                               : exponentiate<false>(r, tile, sees_all, row);
    if (scaled_) {
      multiply(row, tile, tile.v_scales, 1.0f);
      if (!sees_all) fill_unseen(r, tile, row, 0.0f);  // the scale may have been NaN
    }
    for (int v = 0; v < KeyTile::kKeys / kWidth; ++v) weights[v] = Simd::load(row + v * kWidth);
    return factor;
  }

  // Scores become weights relative to the row's maximum. Returns the factor on what was summed before.
  template <bool kStats>
  float exponentiate(int r, const KeyTile& tile, bool sees_all, float* row) {
    if (rule_.transforms) {
      transform_scores({row, tile.begin, keys_of(tile), KeyTile::kKeys}, rule_, block_.rows[r]);
    }
    if (!sees_all) fill_unseen(r, tile, row, kMinusInfinity);
    const RowStates& state = block_.state;
    const float scale = rule_.transforms ? 1.0f : rule_.scale;
    const float factor = raise_max<kStats>(state, r, row_max(row, KeyTile::kKeys) * scale, 1.0f);
    const float max = state.max[r] == kMinusInfinity ? 0.0f : state.max[r];
    // exp2, as where rows are taken together: the way a row takes must not change its bits.
    const RowSums sums = exponentials<WeightsInPlace, kStats, exp2>(row, KeyTile::kKeys, scale, max, row);
    state.sum[r] += sums.sum;
    if constexpr (kStats) {
      state.weighted[r] += sums.weighted;
      state.squares[r] += sums.squares;
    }
    return factor;
  }

  // Whether a weight of zero gives zero with every value of the tile. Integers are finite.
  bool is_finite(const KeyTile& tile) const {
    if constexpr (is_e4m3()) {
      constexpr unsigned kNan = 0x7f;  // the only one, with either sign
      int found = 0;                   // without a branch in the loop, which runs in vectors
      for (int g = 0; g < KeyTile::kGroups; ++g) {
        for (int t = 0; t < tile.keys[g]; ++t) {
          const Element* row = tile.v[g] + t * tile.v_stride;
          for (int d = 0; d < block_.value_dim; ++d) found |= (row[d] & kNan) == kNan;
        }
      }
      return found == 0;
    } else if constexpr (sizeof(Element) > 1) {
      using Lanes = typename Product::Lanes;
      const auto none = Lanes::load_first(tile.v[0], 0);
      Vec sum = Simd::zero();
      for (int g = 0; g < KeyTile::kGroups; ++g) {
        for (int t = 0; t < tile.keys[g]; ++t) {
          const Element* row = tile.v[g] + t * tile.v_stride;
          for (int d = 0; d < block_.value_dim; d += Lanes::kLanes) {
            sum = Lanes::dot(sum, Lanes::load_first(row + d, smaller(Lanes::kLanes, block_.value_dim - d)), none);
          }
        }
      }
      return Simd::reduce_add(sum) == 0.0f;
    }
    return true;
  }

  static constexpr bool is_e4m3() { return sizeof(Element) == 1 && static_cast<Element>(-1) > 0; }

  const DecodeBlock& block_;
  const ScoreRule& rule_;
  bool careful_;
  int row_blocks_;
  bool scaled_;
  DecodeScratch<Product> scratch_;
};

}  // namespace
}  // namespace rootdk::cpu
