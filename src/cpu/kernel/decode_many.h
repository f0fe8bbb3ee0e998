#pragma once

// A tile of a cache for many query rows: it is packed once, and the products of a prompt (decode_prompt.h) run over it,
// six rows at a time, with the bits that four rows at a time have. Included once per target: internal linkage.

#include "cpu/kernel/decode_softmax.h"

namespace rootdk::cpu {
namespace {

template <class Product>
class ManyRows : protected TileSoftmax<Product> {
  using Base = TileSoftmax<Product>;

 public:
  using typename Base::Element;
  using typename Base::KeyTile;
  using typename Base::TileVectors;

  ManyRows(const DecodeBlock& block, bool careful) : Base(block, careful) {}

 protected:
  using Base::block_;
  using Base::careful_;
  using Base::inside;
  using Base::is_finite;
  using Base::plain_softmax;
  using Base::rule_;
  using Base::scaled_;
  using Base::scratch_;
  using Base::sees_whole;
  using Base::softmax;

  // Adds a tile to all rows. False where a value is not finite and some row does not see it.
  __attribute__((noinline)) bool add_to_many(const KeyTile& tile) {
    using Prompt = typename Product::Prompt;
    // Later rows neither begin nor end earlier.
    const bool all_seen = sees_whole(0, tile) && sees_whole(block_.row_count - 1, tile);
    if (careful_ || (!all_seen && !is_finite(tile))) return false;
    auto* keys = reinterpret_cast<typename Prompt::Lane*>(scratch_.prompt_k);
    auto* values = reinterpret_cast<typename Prompt::ValueLane*>(scratch_.prompt_v);
    Prompt::pack_keys(tile, block_.cache.k_row_stride, block_.head_dim, keys);
    Prompt::pack_values(tile, block_.value_dim, values);
    int end = 0;
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      if (tile.keys[g] > 0) end = g * kGroupKeys + tile.keys[g];
    }
    // Keys and values take turns in L1 once for all groups.
    for (int first = 0; first < block_.row_count; first += kPromptGroups * kPromptRows) {
      bool seen[kPromptGroups];
      PromptWeights<typename Product::Weight> weights[kPromptGroups];
      for (int g = 0; g < kPromptGroups; ++g) {
        const int row = first + g * kPromptRows;
        seen[g] = row < block_.row_count && (all_seen || sees_any(row, tile));
        if (seen[g]) Prompt::score(prompt_queries(row), keys, block_.head_dim, end, scratch_.scores_of_group(g));
      }
      for (int g = 0; g < kPromptGroups; ++g) {
        if (seen[g]) prompt_weights(first + g * kPromptRows, g, tile, all_seen, weights[g]);
      }
      for (int g = 0; g < kPromptGroups; ++g) {
        if (seen[g]) Prompt::add_values(weights[g], values, block_.value_dim, end);
      }
    }
    return true;
  }

  void pack_prompt_queries() {
    using Lane = typename Product::Prompt::Lane;
    const ptrdiff_t stride = Product::padded(block_.head_dim);
    for (int r = 0; r < block_.row_count; ++r) {
      const auto* planes = reinterpret_cast<const Lane*>(scratch_.packed + r / kRowBlock * scratch_.packed_stride);
      Product::Prompt::pack_query(planes + r % kRowBlock * stride, kRowBlock * stride, planes_of_queries(),
                                  block_.head_dim, prompt_query(r));
    }
  }

 private:
  // Whether any of kPromptRows rows attends to a key of the tile.
  bool sees_any(int first, const KeyTile& tile) const {
    for (int r = first; r < smaller(first + kPromptRows, block_.row_count); ++r) {
      if (block_.rows[r].key_begin < tile.begin + KeyTile::kKeys && block_.rows[r].key_end > tile.begin &&
          !inside(tile.begin, tile.begin + KeyTile::kKeys, block_.hidden[r])) {
        return true;
      }
    }
    return false;
  }

  auto* prompt_query(int r) const {
    return reinterpret_cast<typename Product::Prompt::Lane*>(scratch_.prompt_q + r * scratch_.prompt_stride);
  }

  int planes_of_queries() const {
    if constexpr (requires(typename Product::Query q) { q.planes; }) return scratch_.queries[0].planes;
    return Product::kWeightPlanes;
  }

  // Rows past the last one are computed as if they were the first, and left out.
  auto prompt_queries(int first) const {
    PromptQueries<typename Product::Prompt::Lane> result{};
    result.planes = planes_of_queries();
    for (int i = 0; i < kPromptRows; ++i) {
      const int r = first + i < block_.row_count ? first + i : first;
      result.rows[i] = prompt_query(r);
      if constexpr (requires(typename Product::Query q) { q.offsets; }) {
        result.offsets[i] = scratch_.queries[r / kRowBlock].offsets[r % kRowBlock];
      }
    }
    return result;
  }

  void store_prompt_weights(int i, const TileVectors& weights, PromptWeights<typename Product::Weight>& result) {
    result.restores[i] = Product::store_weights(scratch_.queries[0], weights, result.weights + i * KeyTile::kKeys,
                                                kPromptRows * KeyTile::kKeys);
  }

  // The softmax of kPromptRows rows, group g of those that are computed together.
  void prompt_weights(int first, int g, const KeyTile& tile, bool all_seen,
                      PromptWeights<typename Product::Weight>& result) {
    const RowStates& state = block_.state;
    const bool plain = !rule_.transforms && !state.weighted;
    float* scores = scratch_.scores_of_group(g);
    result.weights = scratch_.weights_of_group(g);
    result.planes = planes_of_queries();
    for (int i = 0; i < kPromptRows; ++i) {
      result.out[i] = first + i < block_.row_count ? state.out + (first + i) * state.out_stride : scratch_.out;
    }
    if constexpr (Base::template reduces_eight<Simd>()) {
      const int last = first + kPromptRows - 1;
      if (plain && last < block_.row_count && (all_seen || (sees_whole(first, tile) && sees_whole(last, tile)))) {
        return this->template plain_softmax_of_rows<Simd, kPromptRows>(
            first, scores, tile, result.factors,
            [&](int i, const TileVectors& weights) { store_prompt_weights(i, weights, result); });
      }
    }
    for (int i = 0; i < kPromptRows; ++i) {
      const int r = first + i;
      TileVectors weights;
      result.factors[i] = 0.0f;
      if (r < block_.row_count) {
        float* row = scores + i * KeyTile::kKeys;
        const bool sees_all = sees_whole(r, tile);
        result.factors[i] =
            sees_all && plain ? plain_softmax(r, tile, row, weights) : softmax(r, tile, sees_all, row, weights);
      } else {
        for (Vec& w : weights) w = Simd::zero();
      }
      store_prompt_weights(i, weights, result);
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
