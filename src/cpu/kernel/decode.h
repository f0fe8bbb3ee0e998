#pragma once

// Attention of a few query rows over one chunk of a KV cache:
//     s = q k^T;  logits;  rescale by the new maximum;  p = 2^(logit - max);  out += p v
// for each tile of keys and, inside it, each block of four rows. The rows of a block are the query heads that share the
// key head, so each key is read from memory once. While scores are computed the values of the tile are on their way
// into the cache, and while values are added the keys of the next tile. Included once per target: internal linkage.

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

template <class Product>
class DecodeKernel {
 public:
  using Element = typename Product::Element;
  using KeyTile = Tile<typename Product::Lanes>;
  using Values = TileValues<typename Product::Lanes, typename Product::Weight>;

  // `careful`: a key whose weight is 0 adds nothing, even where its value is NaN or infinite.
  DecodeKernel(const DecodeBlock& block, bool careful)
      : block_(block),
        rule_(*block.rule),
        careful_(careful),
        row_blocks_((block.row_count + kRowBlock - 1) / kRowBlock),
        scaled_(block.cache.kind == CacheKind::i8 || block.cache.kind == CacheKind::f8e4m3),
        scratch_(block.scratch, block.head_dim, block.value_dim, row_blocks_) {}

  // Forgets what the states held, makes the queries ready, and finds the first tile; total is 0 where there is none.
  KeyTile start() {
    clear();
    for (int b = 0; b < row_blocks_; ++b) {
      const int first = b * kRowBlock;
      scratch_.queries[b] = Product::pack(
          block_.q + static_cast<ptrdiff_t>(first) * block_.head_dim, smaller(kRowBlock, block_.row_count - first),
          block_.head_dim, block_.q_is_bf16, scratch_.packed + static_cast<size_t>(b) * scratch_.packed_stride);
    }
    if (is_many()) pack_prompt_queries();
    return find_from(block_.begin, block_.end);
  }

  // Adds a tile to all rows, while memory brings the tile that is read after it.
  void add(const KeyTile& tile, const KeyTile& ahead) {
    const KeyTile nothing;
    int b = 0;
    if (is_many() && add_to_many(tile)) b = row_blocks_;
    // The first rows fetch, the others find everything in the caches.
    for (; b < row_blocks_; ++b) attend(b, tile, b == 0 ? ahead : nothing);
  }

  KeyTile next(const KeyTile& tile) const { return find_from(tile.begin + KeyTile::kKeys, block_.end); }

  // The next tile or, after the last one, the first of the next chunk.
  KeyTile following(const KeyTile& tile) const {
    const KeyTile after = next(tile);
    return after.total > 0 ? after : find_from(block_.end, block_.fetch_end);
  }

 private:
  bool is_many() const { return row_blocks_ * kRowBlock > kFewRows; }

  void clear() {
    const RowStates& s = block_.state;
    const int rows = row_blocks_ * kRowBlock;
    for (int r = 0; r < rows; ++r) {
      s.max[r] = kMinusInfinity;
      s.sum[r] = 0.0f;
      if (s.weighted) s.weighted[r] = s.squares[r] = 0.0f;
    }
    for (int64_t i = 0; i < rows * s.out_stride; ++i) s.out[i] = 0.0f;
  }

  // The first tile at or after a position with a key that some row sees; total is 0 where there is none. In line: GCC
  // would make calls of it in a file with few kernels, which costs 2 % in bf16.
  __attribute__((always_inline)) KeyTile find_from(int64_t position, int64_t limit) const {
    KeyTile tile;
    for (; position < limit; position += KeyTile::kKeys) {
      find(position, limit, tile);
      if (tile.total > 0) return tile;
    }
    return tile;
  }

  static bool inside(int64_t begin, int64_t end, const KeyGap& gap) { return begin >= gap.begin && end <= gap.end; }

  __attribute__((always_inline)) void find(int64_t position, int64_t limit, KeyTile& tile) const {
    const CachedKeys& c = block_.cache;
    tile.begin = position;
    tile.v_stride = c.v_row_stride;
    int64_t logical_page = position / c.page_size, token = position % c.page_size;
    for (int g = 0; g < KeyTile::kGroups; ++g, token += kGroupKeys) {
      if (token >= c.page_size) {
        ++logical_page;
        token = 0;
      }
      const int64_t begin = position + g * kGroupKeys;
      const int64_t end = begin + kGroupKeys < limit ? begin + kGroupKeys : limit;
      tile.keys[g] = 0;
      if (begin >= end || inside(begin, end, block_.evicted) || inside(begin, end, block_.unseen)) continue;
      const int64_t page = c.pages[logical_page];
      tile.keys[g] = static_cast<int>(end - begin);
      tile.k[g] = static_cast<const Element*>(c.k) + page * c.k_page_stride + token * c.k_row_stride;
      tile.v[g] = static_cast<const Element*>(c.v) + page * c.v_page_stride + token * c.v_row_stride;
      if (scaled_) {
        tile.k_scales[g] = c.k_scales + page * c.scale_page_stride + token;
        tile.v_scales[g] = c.v_scales + page * c.scale_page_stride + token;
      }
      tile.total += tile.keys[g];
    }
  }

  using TileVectors = Vec[KeyTile::kKeys / kWidth];

  void attend(int b, const KeyTile& tile, const KeyTile& ahead) {
    score(b, tile, ahead);
    float factors[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f}, restores[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f};
    bool all_seen = true;
    for (int i = 0; i < kRowBlock; ++i) {
      const int r = b * kRowBlock + i;
      TileVectors weights;
      for (Vec& w : weights) w = Simd::zero();
      if (r < block_.row_count) {
        const bool sees_all = sees_whole(r, tile), plain = !rule_.transforms && !block_.state.weighted;
        all_seen = all_seen && sees_all;
        float* row = scratch_.scores + i * KeyTile::kKeys;
        factors[i] = sees_all && plain && !careful_ ? plain_softmax(r, tile, row, weights)
                                                    : softmax(r, tile, sees_all, row, weights);
      }
      restores[i] = Product::store_weights(scratch_.queries[b], weights, scratch_.weights + i * KeyTile::kKeys,
                                           kRowBlock * KeyTile::kKeys);
    }
    const Values values{tile, ahead, scratch_.weights, factors, restores, block_.value_dim};
    if ((all_seen && !careful_) || is_finite(tile)) {
      Product::add_values(scratch_.queries[b], values, block_.state, b * kRowBlock);
    } else {
      add_values_carefully(b, values);
    }
  }

  // The same for all rows, where they are many: the tile is packed once, for products of a prompt. False where a value
  // is not finite and some row does not see it.
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

  void pack_prompt_queries() {
    using Lane = typename Product::Prompt::Lane;
    const ptrdiff_t stride = Product::padded(block_.head_dim);
    for (int r = 0; r < block_.row_count; ++r) {
      const auto* planes = reinterpret_cast<const Lane*>(scratch_.packed + r / kRowBlock * scratch_.packed_stride);
      Product::Prompt::pack_query(planes + r % kRowBlock * stride, kRowBlock * stride, planes_of_queries(),
                                  block_.head_dim, prompt_query(r));
    }
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

  // plain_softmax() of kPromptRows rows at a time, with the same bits: their maxima and sums are lanes of vectors.
  template <class S>
  void plain_softmax_of_rows(int first, float* scores, const KeyTile& tile,
                             PromptWeights<typename Product::Weight>& result) {
    constexpr int kVectors = KeyTile::kKeys / kWidth;
    const RowStates& state = block_.state;
    const Vec scale = S::set1(rule_.scale);
    Vec rows[8];
    for (int i = 0; i < kPromptRows; ++i) {
      float* row = scores + i * KeyTile::kKeys;
      if (scaled_) multiply(row, tile, tile.k_scales, query_scale(first + i));
      rows[i] = S::max(S::load(row), S::load(row + kWidth));
      for (int v = 2; v < kVectors; ++v) rows[i] = S::max(rows[i], S::load(row + v * kWidth));
    }
    for (int i = kPromptRows; i < 8; ++i) rows[i] = rows[0];
    const Vec before = S::load_first(state.max + first, kPromptRows);
    const Vec here = S::mul(S::reduce_eight(rows, [](Vec a, Vec b) { return S::max(a, b); }), scale);
    const Vec after = S::select_less(before, here, here, before);
    Vec factors = S::set1(1.0f), sums = S::load_first(state.sum + first, kPromptRows);
    if (S::any_less(before, here, kPromptRows)) {
      factors = exp2(S::select_less(before, here, S::sub(before, after), S::zero()));
      sums = S::mul(sums, factors);
      S::store_first(state.max + first, after, kPromptRows);
    }
    S::store_first(result.factors, factors, kPromptRows);
    alignas(64) float offsets[kWidth];
    S::store(offsets, S::select_less(S::set1(kMinusInfinity), after, S::sub(S::set1(-0.0f), after), S::set1(-0.0f)));
    for (int i = 0; i < kPromptRows; ++i) {
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
      store_prompt_weights(i, weights, result);
    }
    sums = S::add(sums, S::reduce_eight(rows, [](Vec a, Vec b) { return S::add(a, b); }));
    S::store_first(state.sum + first, sums, kPromptRows);
  }

  void store_prompt_weights(int i, const TileVectors& weights, PromptWeights<typename Product::Weight>& result) {
    result.restores[i] = Product::store_weights(scratch_.queries[0], weights, result.weights + i * KeyTile::kKeys,
                                                kPromptRows * KeyTile::kKeys);
  }

  static Vec scales_of(const float* const (&scales)[KeyTile::kGroups], int v) {
    return Simd::load(scales[v * kWidth / kGroupKeys] + v * kWidth % kGroupKeys);
  }

  template <class S>
  static constexpr bool reduces_eight() {
    return requires { S::kReducesEight; };
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
    if constexpr (reduces_eight<Simd>()) {
      const int last = first + kPromptRows - 1;
      if (plain && last < block_.row_count && (all_seen || (sees_whole(first, tile) && sees_whole(last, tile)))) {
        return plain_softmax_of_rows<Simd>(first, scores, tile, result);
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

  float query_scale(int r) const { return scratch_.queries[r / kRowBlock].scales[r % kRowBlock]; }

  void score(int b, const KeyTile& tile, const KeyTile& ahead) {
    if (scaled_) fetch_scales(ahead);
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      if (tile.keys[g] == 0) continue;
      Product::score(scratch_.queries[b],
                     {tile.k[g], ahead.keys[g] ? ahead.k[g] : tile.k[g], tile.keys[g], block_.cache.k_row_stride},
                     block_.head_dim, scratch_.scores + g * kGroupKeys);
    }
  }

  // A line each: the scales of a group are of one page.
  static void fetch_scales(const KeyTile& ahead) {
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      if (ahead.keys[g] == 0) continue;
      prefetch_line(ahead.k_scales[g]);
      prefetch_line(ahead.v_scales[g]);
    }
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
    const RowSums sums = exponentials<WeightsInPlace, kStats>(row, KeyTile::kKeys, scale, max, row);
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

  // The same sums in the same order, with zeros instead of the keys that a row does not see.
  void add_values_carefully(int b, const Values& values) {
    const RowStates& state = block_.state;
    const KeyTile nothing;
    for (int i = 0; i < kRowBlock && b * kRowBlock + i < block_.row_count; ++i) {
      const KeyTile seen = seen_values(b, i, values.tile);
      const float* rows = state.out + b * kRowBlock * state.out_stride;
      RowStates copy = state;
      copy.out = scratch_.out;
      for (int64_t d = 0; d < kRowBlock * state.out_stride; ++d) copy.out[d] = rows[d];
      Product::add_values(scratch_.queries[b],
                          Values{seen, nothing, values.weights, values.factors, values.restores, values.value_dim},
                          copy, 0);
      float* row = state.out + (b * kRowBlock + i) * state.out_stride;
      for (int64_t d = 0; d < state.out_stride; ++d) row[d] = copy.out[i * state.out_stride + d];
    }
  }

  // The tile with a copy of its values, zero for the keys that row i of block b does not see.
  KeyTile seen_values(int b, int i, const KeyTile& tile) {
    float seen[KeyTile::kKeys];
    const float* weights = scratch_.scores + i * KeyTile::kKeys;  // of softmax(), which all careful rows go through
    for (int t = 0; t < KeyTile::kKeys; ++t) seen[t] = careful_ ? weights[t] : 1.0f;
    fill_unseen(b * kRowBlock + i, tile, seen, 0.0f);
    KeyTile result = tile;
    result.v_stride = block_.value_dim;
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      Element* to = scratch_.values + g * kGroupKeys * block_.value_dim;
      result.v[g] = to;
      for (int t = 0; t < tile.keys[g]; ++t) {
        const bool kept = seen[g * kGroupKeys + t] != 0.0f;
        for (int d = 0; d < block_.value_dim; ++d) {
          to[t * block_.value_dim + d] = kept ? tile.v[g][t * tile.v_stride + d] : Element{};
        }
      }
    }
    return result;
  }

  const DecodeBlock& block_;
  const ScoreRule& rule_;
  bool careful_;
  int row_blocks_;
  bool scaled_;
  DecodeScratch<Product> scratch_;
};

// Whether 0 times a value may have made a NaN: a logit of -inf hides its key as a mask does, but no range tells.
// Integers are finite.
inline bool needs_care(const DecodeBlock& block) {
  if (block.cache.kind == CacheKind::i8) return false;
  int nan = 0;  // without a branch in the loop, which runs in vectors
  for (int r = 0; r < block.row_count; ++r) {
    const float* row = block.state.out + r * block.state.out_stride;
    for (int d = 0; d < block.value_dim; ++d) nan |= row[d] != row[d];
  }
  return nan != 0;
}

// See DecodeTable::run. All heads see the same keys, so that their tiles begin at the same positions. Where heads take
// turns, what is read two tiles later is prefetched, since a page holds few bytes of a head; otherwise the next tile.
// A head that needs care runs once more by a call of the same function: a second one would call the kernel's functions
// from two places, and the compiler would no longer put them in line, which costs 5 % (GCC 12, Zen 4).
template <class Product>
void run_chunk_of(const DecodeBlock* blocks, int count, bool careful) {
  using Kernel = DecodeKernel<Product>;
  typename Kernel::KeyTile tiles[2 * kMaxHeadsTogether];  // of this turn and, as far as they are fetched, of the next
  const int ahead = count > 2 ? 2 : 1;
  for (int head = 0; head < count; ++head) tiles[head] = Kernel(blocks[head], careful).start();
  while (tiles[0].total > 0) {
    for (int head = 0; head < ahead; ++head) tiles[count + head] = Kernel(blocks[head], careful).following(tiles[head]);
    for (int head = 0; head < count; ++head) {
      Kernel kernel(blocks[head], careful);
      kernel.add(tiles[head], tiles[head + ahead]);
      tiles[head] = kernel.next(tiles[head]);
    }
  }
  for (int head = 0; head < count && !careful; ++head) {
    if (needs_care(blocks[head])) run_chunk_of<Product>(blocks + head, 1, true);
  }
}

template <class Product>
void run_chunk(const DecodeBlock* blocks, int count) {
  run_chunk_of<Product>(blocks, count, false);
}

}  // namespace
}  // namespace rootdk::cpu
