#pragma once

// Tiles of a cache for many query rows: they are packed once, and the products of a prompt (decode_prompt.h) run over
// several of them, six rows at a time, with the bits that four rows and one tile at a time have. Included once per
// target: internal linkage.

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
  using Held = typename DecodeScratch<Product>::Held;
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

  // Packs a tile, which the rows add later. False where a value is not finite and some row does not see it.
  __attribute__((noinline)) bool hold(const KeyTile& tile) {
    // Later rows neither begin nor end earlier.
    const bool all_seen = sees_whole(0, tile) && sees_whole(block_.row_count - 1, tile);
    if (careful_ || (!all_seen && !is_finite(tile))) return false;
    auto& held = *scratch_.held;
    Prompt::pack_keys(tile, block_.cache.k_row_stride, block_.head_dim, held_keys(held.count));
    Prompt::pack_values(tile, block_.value_dim, held_values(held.count));
    held.tiles[held.count++] = tile;
    return true;
  }

  bool holds_enough() const { return scratch_.held->count == Held::kMost; }

  // Adds the held tiles to all rows, and fetches others.
  void add_tiles_to_rows(const Held& ahead) {
    auto& held = *scratch_.held;
    const int groups = (block_.row_count + kPromptRows - 1) / kPromptRows;
    for (int group = 0; group < groups; ++group) {
      const int first = group * kPromptRows;
      fetch(ahead, group, groups);
      for (int t = 0; t < held.count;) {
        const int whole = whole_tiles(first, t);
        if (whole > 0) {
          add_tiles(first, t, whole, true);
        } else if (sees_any(first, held.tiles[t])) {
          add_tiles(first, t, 1, false);
        }
        t += larger(1, whole);
      }
    }
    held.count = 0;
  }

  void pack_prompt_queries() {
    if constexpr (packs_queries<Prompt>()) {
      const ptrdiff_t plane_stride = kRowBlock * Product::padded(block_.head_dim);
      for (int r = 0; r < block_.row_count; ++r) {
        Prompt::pack_query(query(r), plane_stride, planes_of_queries(), block_.head_dim, prompt_query(r));
      }
    }
  }

 private:
  using Prompt = typename Product::Prompt;
  using Weights = PromptWeights<typename Product::Weight>;

  // One part of the keys and values of some tiles. In line: GCC leaves out calls of a function that does nothing but
  // prefetch.
  __attribute__((always_inline)) void fetch(const Held& ahead, int part, int parts) const {
    constexpr int kKeys = Held::kMost * KeyTile::kKeys;
    for (int key = kKeys * part / parts; key < kKeys * (part + 1) / parts; ++key) {
      const KeyTile& tile = ahead.tiles[key / KeyTile::kKeys];
      const int g = key % KeyTile::kKeys / kGroupKeys, t = key % kGroupKeys;
      if (t >= tile.keys[g]) continue;
      fetch_row(tile.k[g] + t * block_.cache.k_row_stride, block_.head_dim);
      fetch_row(tile.v[g] + t * tile.v_stride, block_.value_dim);
    }
  }

  __attribute__((always_inline)) static void fetch_row(const Element* row, int elements) {
    for (int i = 0; i < elements; i += kLine / static_cast<int>(sizeof(Element))) prefetch_line(row + i);
  }

  auto* held_keys(int t) const {
    return reinterpret_cast<typename Prompt::Lane*>(scratch_.prompt_k + t * Prompt::key_bytes(block_.head_dim));
  }
  auto* held_values(int t) const {
    return reinterpret_cast<typename Prompt::ValueLane*>(scratch_.prompt_v + t * Prompt::value_bytes(block_.value_dim));
  }

  // How many held tiles from t on kPromptRows rows see whole.
  int whole_tiles(int first, int t) const {
    const int last = smaller(first + kPromptRows, block_.row_count) - 1, begin = t;
    while (t < scratch_.held->count && sees_whole(first, scratch_.held->tiles[t]) &&
           sees_whole(last, scratch_.held->tiles[t])) {
      ++t;
    }
    return t - begin;
  }

  // Adds `count` held tiles from t on to kPromptRows rows; where they are more than one, the rows see them whole.
  void add_tiles(int first, int t, int count, bool whole) {
    const KeyTile* tiles = scratch_.held->tiles + t;
    int end = 0;
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      if (tiles[0].keys[g] > 0) end = g * kGroupKeys + tiles[0].keys[g];
    }
    const auto queries = prompt_queries(first);
    Weights weights[Held::kMost];
    for (int n = 0; n < count; ++n) {
      Prompt::score(queries, held_keys(t + n), block_.head_dim, end, scratch_.scores_of_tile(n));
      set_weights(first, n, weights[n]);
    }
    prompt_softmax(first, tiles, count, whole, weights);
    if constexpr (requires { Prompt::add_values(weights, count, held_values(t), block_.value_dim, end); }) {
      Prompt::add_values(weights, count, held_values(t), block_.value_dim, end);
    } else {
      for (int n = 0; n < count; ++n) Prompt::add_values(weights[n], held_values(t + n), block_.value_dim, end);
    }
  }

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

  // The first plane of a query.
  auto* query(int r) const {
    auto* block = reinterpret_cast<typename Prompt::Lane*>(scratch_.packed + r / kRowBlock * scratch_.packed_stride);
    return block + r % kRowBlock * Product::padded(block_.head_dim);
  }

  auto* prompt_query(int r) const {
    if constexpr (!packs_queries<Prompt>()) return query(r);
    return reinterpret_cast<typename Prompt::Lane*>(scratch_.prompt_q + r * scratch_.prompt_stride);
  }

  int planes_of_queries() const {
    if constexpr (requires(typename Product::Query q) { q.planes; }) return scratch_.queries[0].planes;
    return Product::kWeightPlanes;
  }

  // Rows past the last one are computed as if they were the first, and left out.
  auto prompt_queries(int first) const {
    PromptQueries<typename Product::Prompt::Lane> result{};
    result.planes = planes_of_queries();
    result.plane_stride = kRowBlock * Product::padded(block_.head_dim);
    for (int i = 0; i < kPromptRows; ++i) {
      const int r = first + i < block_.row_count ? first + i : first;
      result.rows[i] = prompt_query(r);
      if constexpr (requires(typename Product::Query q) { q.offsets; }) {
        result.offsets[i] = scratch_.queries[r / kRowBlock].offsets[r % kRowBlock];
      }
    }
    return result;
  }

  void store_prompt_weights(int i, const TileVectors& weights, Weights& result) {
    result.restores[i] = Product::store_weights(scratch_.queries[0], weights, result.weights + i * KeyTile::kKeys,
                                                kPromptRows * KeyTile::kKeys);
  }

  // Where the weights of tile n go, and their sums.
  void set_weights(int first, int n, Weights& result) {
    const RowStates& state = block_.state;
    result.weights = scratch_.weights_of_tile(n);
    result.planes = planes_of_queries();
    for (int i = 0; i < kPromptRows; ++i) {
      result.out[i] = first + i < block_.row_count ? state.out + (first + i) * state.out_stride : scratch_.out;
    }
  }

  // The softmax of kPromptRows rows over some tiles.
  void prompt_softmax(int first, const KeyTile* tiles, int count, bool whole, Weights* weights) {
    if constexpr (Base::template reduces_eight<Simd>()) {
      if (whole && !rule_.transforms && !block_.state.weighted && first + kPromptRows <= block_.row_count) {
        return plain_softmax_of_tiles<Simd>(first, tiles, count, weights);
      }
    }
    for (int n = 0; n < count; ++n) softmax_by_rows(first, tiles[n], scratch_.scores_of_tile(n), weights[n]);
  }

  // All maxima come before the first exponential, so that no tile waits for the one before it.
  template <class S>
  void plain_softmax_of_tiles(int first, const KeyTile* tiles, int count, Weights* weights) {
    const RowStates& state = block_.state;
    alignas(64) float offsets[Held::kMost][kWidth], factors[Held::kMost][kWidth];
    Vec max = S::load_first(state.max + first, kPromptRows);
    for (int n = 0; n < count; ++n) {
      const Vec here = this->template maxima_of_rows<S, kPromptRows>(first, scratch_.scores_of_tile(n), tiles[n]);
      weights[n].rescales = S::any_less(max, here, kPromptRows);
      const Vec by = Base::template factors_of_rows<S>(max, here);
      S::store(factors[n], by);
      S::store_first(weights[n].factors, by, kPromptRows);
      max = S::select_less(max, here, here, max);
      S::store(offsets[n], Base::template offsets_of_rows<S>(max));
    }
    S::store_first(state.max + first, max, kPromptRows);
    Vec sums = S::load_first(state.sum + first, kPromptRows);
    for (int n = 0; n < count; ++n) {
      const Vec added = this->template exponentials_of_rows<S, kPromptRows>(
          scratch_.scores_of_tile(n), tiles[n], offsets[n],
          [&](int i, const TileVectors& vectors) { store_prompt_weights(i, vectors, weights[n]); });
      sums = S::add(S::mul(sums, S::load(factors[n])), added);
    }
    S::store_first(state.sum + first, sums, kPromptRows);
  }

  // The softmax of kPromptRows rows one by one. Rows past the last one add nothing.
  void softmax_by_rows(int first, const KeyTile& tile, float* scores, Weights& result) {
    const bool plain = !rule_.transforms && !block_.state.weighted;
    result.rescales = false;
    for (int i = 0; i < kPromptRows; ++i) {
      const int r = first + i;
      TileVectors weights;
      result.factors[i] = 1.0f;
      if (r < block_.row_count) {
        float* row = scores + i * KeyTile::kKeys;
        const bool sees_all = sees_whole(r, tile);
        result.factors[i] =
            sees_all && plain ? plain_softmax(r, tile, row, weights) : softmax(r, tile, sees_all, row, weights);
      } else {
        for (Vec& w : weights) w = Simd::zero();
      }
      result.rescales = result.rescales || result.factors[i] != 1.0f;
      store_prompt_weights(i, weights, result);
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
