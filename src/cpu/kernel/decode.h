#pragma once

// Attention of a few query rows over one chunk of a KV cache:
//     s = q k^T;  logits;  rescale by the new maximum;  p = 2^(logit - max);  out += p v
// for each tile of keys and, inside it, each block of four rows. The rows of a block are the query heads that share the
// key head, so each key is read from memory once. While scores are computed the values of the tile are on their way
// into the cache, and while values are added the keys of the next tile. Included once per target: internal linkage.

#include "cpu/kernel/decode_tile.h"
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
struct DecodeScratch {
  using Weight = typename Product::Weight;

  static constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr size_t kScores = sizeof(float) * kRowBlock * kTileKeys;
  static constexpr size_t kScales = sizeof(float) * 2 * kTileKeys;
  static constexpr size_t kWeights = sizeof(Weight) * Product::kWeightPlanes * kRowBlock * kTileKeys;

  static size_t bytes(int head_dim, int rows) {
    const auto blocks = static_cast<size_t>((rows + kRowBlock - 1) / kRowBlock);
    return kScores + kScales + aligned(kWeights) +
           blocks * (aligned(Product::query_bytes(head_dim)) + aligned(sizeof(typename Product::Query)));
  }

  DecodeScratch(void* memory, int head_dim, int blocks) {
    auto* p = static_cast<unsigned char*>(memory);
    scores = reinterpret_cast<float*>(p);
    k_scales = reinterpret_cast<float*>(p + kScores);
    v_scales = k_scales + kTileKeys;
    weights = reinterpret_cast<Weight*>(p + kScores + kScales);
    queries = reinterpret_cast<typename Product::Query*>(p + kScores + kScales + aligned(kWeights));
    packed = p + kScores + kScales + aligned(kWeights) +
             static_cast<size_t>(blocks) * aligned(sizeof(typename Product::Query));
    packed_stride = aligned(Product::query_bytes(head_dim));
  }

  float* scores;                     // [kRowBlock, kTileKeys]; then the weights in f32
  float *k_scales, *v_scales;        // [kTileKeys]
  Weight* weights;                   // [planes, kRowBlock, kTileKeys]
  typename Product::Query* queries;  // [row blocks]
  unsigned char* packed;             // [row blocks, packed_stride]
  size_t packed_stride;
};

template <class Product>
class DecodeKernel {
 public:
  using Element = typename Product::Element;

  explicit DecodeKernel(const DecodeBlock& block)
      : block_(block),
        rule_(*block.rule),
        row_blocks_((block.row_count + kRowBlock - 1) / kRowBlock),
        scaled_(block.cache.kind == CacheKind::i8),
        scratch_(block.scratch, block.head_dim, row_blocks_) {}

  void run() {
    clear();
    for (int b = 0; b < row_blocks_; ++b) {
      const int first = b * kRowBlock;
      scratch_.queries[b] = Product::pack(
          block_.q + static_cast<ptrdiff_t>(first) * block_.head_dim, smaller(kRowBlock, block_.row_count - first),
          block_.head_dim, block_.q_is_bf16, scratch_.packed + static_cast<size_t>(b) * scratch_.packed_stride);
    }
    const Tile<Element> nothing;
    Tile<Element> tile = find_from(block_.begin);
    while (tile.total > 0) {
      const Tile<Element> next = find_from(tile.begin + kTileKeys);
      if (scaled_) gather_scales(tile);
      // The first rows fetch, the others find everything in the caches.
      for (int b = 0; b < row_blocks_; ++b) attend(b, tile, b == 0 ? next : nothing);
      tile = next;
    }
  }

 private:
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

  // The first tile at or after a position with a key that some row sees; total is 0 where there is none.
  Tile<Element> find_from(int64_t position) const {
    Tile<Element> tile;
    for (; position < block_.end; position += kTileKeys) {
      find(position, tile);
      if (tile.total > 0) return tile;
    }
    return tile;
  }

  static bool inside(int64_t begin, int64_t end, const KeySpan& span) { return begin >= span.begin && end <= span.end; }

  void find(int64_t position, Tile<Element>& tile) const {
    const CachedKeys& c = block_.cache;
    tile.begin = position;
    for (int g = 0; g < kTileGroups; ++g) {
      const int64_t begin = position + g * kGroupKeys;
      const int64_t end = begin + kGroupKeys < block_.end ? begin + kGroupKeys : block_.end;
      tile.keys[g] = 0;
      if (begin >= end || inside(begin, end, block_.evicted) || inside(begin, end, block_.unseen)) continue;
      const int64_t page = c.pages[begin / c.page_size], token = begin % c.page_size;
      tile.keys[g] = static_cast<int>(end - begin);
      tile.k[g] = static_cast<const Element*>(c.k) + page * c.k_page_stride + token * block_.head_dim;
      tile.v[g] = static_cast<const Element*>(c.v) + page * c.v_page_stride + token * block_.value_dim;
      if (scaled_) {
        tile.k_scales[g] = c.k_scales + page * c.scale_page_stride + token;
        tile.v_scales[g] = c.v_scales + page * c.scale_page_stride + token;
      }
      tile.total += tile.keys[g];
    }
  }

  void gather_scales(const Tile<Element>& tile) {
    for (int g = 0; g < kTileGroups; ++g) {
      for (int t = 0; t < kGroupKeys; ++t) {
        const bool there = t < tile.keys[g];
        scratch_.k_scales[g * kGroupKeys + t] = there ? tile.k_scales[g][t] : 0.0f;
        scratch_.v_scales[g * kGroupKeys + t] = there ? tile.v_scales[g][t] : 0.0f;
      }
    }
  }

  void attend(int b, const Tile<Element>& tile, const Tile<Element>& ahead) {
    score(b, tile, ahead);
    float factors[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f}, restores[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f};
    for (int i = 0; i < kRowBlock; ++i) {
      const int r = b * kRowBlock + i;
      float* row = scratch_.scores + i * kTileKeys;
      if (r < block_.row_count) {
        factors[i] = block_.state.weighted ? softmax<true>(r, tile, row) : softmax<false>(r, tile, row);
        if (scaled_) multiply(row, scratch_.v_scales, 1.0f);
      } else {
        for (int t = 0; t < kTileKeys; t += kWidth) Simd::store(row + t, Simd::zero());
      }
      restores[i] = Product::store_weights(scratch_.queries[b], row, scratch_.weights + i * kTileKeys);
    }
    const TileValues<Element, typename Product::Weight> values{tile,    ahead,    scratch_.weights,
                                                               factors, restores, block_.value_dim};
    Product::add_values(scratch_.queries[b], values, block_.state, b * kRowBlock, block_.value_dim);
  }

  void score(int b, const Tile<Element>& tile, const Tile<Element>& ahead) {
    for (int g = 0; g < kTileGroups; ++g) {
      if (tile.keys[g] == 0) continue;
      Product::score(scratch_.queries[b], {tile.k[g], ahead.keys[g] ? ahead.k[g] : nullptr, tile.keys[g]},
                     block_.head_dim, scratch_.scores + g * kGroupKeys);
    }
    if (scaled_) {
      for (int i = 0; i < kRowBlock; ++i) {
        multiply(scratch_.scores + i * kTileKeys, scratch_.k_scales, scratch_.queries[b].scales[i]);
      }
    }
  }

  static void multiply(float* row, const float* by, float factor) {
    for (int t = 0; t < kTileKeys; t += kWidth) {
      Simd::store(row + t, Simd::mul(Simd::load(row + t), Simd::mul(Simd::load(by + t), Simd::set1(factor))));
    }
  }

  static bool apart(const KeySpan& span, int64_t begin, int64_t end) {
    return span.begin >= span.end || span.end <= begin || span.begin >= end;
  }

  static void mask(float* row, int64_t tile, const KeySpan& span) {
    const int64_t begin = span.begin > tile ? span.begin - tile : 0;
    const int64_t end = span.end - tile < kTileKeys ? span.end - tile : kTileKeys;
    fill_masked(row, begin, end);
  }

  // Scores become weights relative to the row's maximum. Returns the factor on what was summed before.
  template <bool kStats>
  float softmax(int r, const Tile<Element>& tile, float* row) {
    const QueryRow& query = block_.rows[r];
    const int64_t begin = tile.begin, end = begin + kTileKeys;
    const bool sees_all = tile.total == kTileKeys && query.key_end >= end && apart(block_.hidden[r], begin, end) &&
                          apart(block_.evicted, begin, end);
    if (rule_.transforms || !sees_all) {
      form_logits({row, begin, kTileKeys, kTileKeys}, rule_, query);
      mask(row, begin, block_.hidden[r]);
      mask(row, begin, block_.evicted);
      for (int g = 0; g < kTileGroups; ++g) {
        if (tile.keys[g] == 0) fill_masked(row, g * kGroupKeys, (g + 1) * kGroupKeys);
      }
    }
    const RowStates& state = block_.state;
    const float scale = rule_.transforms ? 1.0f : rule_.scale;
    const float factor = raise_max<kStats>(state, r, row_max(row, kTileKeys) * scale, 1.0f);
    const float max = state.max[r] == kMinusInfinity ? 0.0f : state.max[r];
    const RowSums sums = exponentials<WeightsInPlace, kStats>(row, kTileKeys, scale, max, row);
    state.sum[r] += sums.sum;
    if constexpr (kStats) {
      state.weighted[r] += sums.weighted;
      state.squares[r] += sums.squares;
    }
    return factor;
  }

  const DecodeBlock& block_;
  const ScoreRule& rule_;
  int row_blocks_;
  bool scaled_;
  DecodeScratch<Product> scratch_;
};

}  // namespace
}  // namespace rootdk::cpu
