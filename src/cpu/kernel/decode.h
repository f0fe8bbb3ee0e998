#pragma once

// Attention of a few query rows over one chunk of a KV cache:
//     s = q k^T;  logits;  rescale by the new maximum;  p = 2^(logit - max);  out += p v
// for each tile of keys and, inside it, each block of four rows. The rows of a block are the query heads that share the
// key head, so each key is read from memory once. While scores are computed the values of the tile are on their way
// into the cache, and while values are added the keys of the next tile. Included once per target: internal linkage.

#include "cpu/kernel/decode_many.h"

namespace rootdk::cpu {
namespace {

template <class Product>
class DecodeKernel : ManyRows<Product> {
  using Base = ManyRows<Product>;

 public:
  using typename Base::Element;
  using typename Base::KeyTile;
  using Values = TileValues<typename Product::Lanes, typename Product::Weight>;

  // `careful`: a key whose weight is 0 adds nothing, even where its value is NaN or infinite.
  DecodeKernel(const DecodeBlock& block, bool careful) : Base(block, careful) {}

  // Forgets what the states held, makes the queries ready, and finds the first tile; total is 0 where there is none.
  KeyTile start() {
    clear();
    for (int b = 0; b < row_blocks_; ++b) {
      const int first = b * kRowBlock;
      scratch_.queries[b] = Product::pack(
          block_.q + static_cast<ptrdiff_t>(first) * block_.head_dim, smaller(kRowBlock, block_.row_count - first),
          block_.head_dim, block_.q_is_bf16, scratch_.packed + static_cast<size_t>(b) * scratch_.packed_stride);
    }
    if (is_many()) {
      this->pack_prompt_queries();
      scratch_.held->count = 0;
    }
    if constexpr (has_eight<Product>()) {
      if (takes_eight()) pack_eight_queries();
    }
    return find_from(block_.begin, block_.end);
  }

  // Adds a tile to all rows, while memory brings the tile that is read after it.
  void add(const KeyTile& tile, const KeyTile& ahead) {
    const KeyTile nothing;
    if (is_many()) {
      const bool held = this->hold(tile);
      if (!held || this->holds_enough()) add_held();
      if (held) return;
    }
    if constexpr (has_eight<Product>()) {
      if (takes_eight() && sees_whole(0, tile) && sees_whole(block_.row_count - 1, tile)) {
        return add_to_eight(tile, ahead);
      }
    }
    // The first rows fetch, the others find everything in the caches.
    for (int b = 0; b < row_blocks_; ++b) attend(b, tile, b == 0 ? ahead : nothing);
  }

  // Adds what add() has held back.
  void finish() {
    if (is_many()) add_held();
  }

  KeyTile next(const KeyTile& tile) const { return find_from(tile.begin + KeyTile::kKeys, block_.end); }

  // The next tile or, after the last one, the first of the next chunk.
  KeyTile following(const KeyTile& tile) const {
    const KeyTile after = next(tile);
    return after.total > 0 ? after : find_from(block_.end, block_.fetch_end);
  }

 private:
  using Base::block_;
  using Base::careful_;
  using Base::fill_unseen;
  using Base::inside;
  using Base::is_finite;
  using Base::plain_softmax;
  using Base::row_blocks_;
  using Base::rule_;
  using Base::scaled_;
  using Base::scratch_;
  using Base::sees_whole;
  using Base::softmax;
  using typename Base::TileVectors;

  // Adds the held tiles to all rows, while memory brings as many tiles that are read after them.
  __attribute__((noinline)) void add_held() {
    const auto& held = *scratch_.held;
    if (held.count == 0) return;
    typename Base::Held ahead;
    int64_t position = held.end();
    while (ahead.count < Base::Held::kMost && position < block_.fetch_end) {
      ahead.tiles[ahead.count++] = find_from(position, block_.fetch_end);
      position = ahead.end();
    }
    this->add_tiles_to_rows(ahead);
  }

  bool is_many() const { return row_blocks_ * kRowBlock > kFewRows; }

  // Whether tiles that all rows see whole go to the products of eight rows.
  bool takes_eight() const {
    return row_blocks_ * kRowBlock == kEightRows && Product::Eight::takes(block_.head_dim, block_.value_dim) &&
           !careful_ && !rule_.transforms && !block_.state.weighted;
  }

  void pack_eight_queries() {
    for (int b = 0; b < row_blocks_; ++b) {
      const typename Product::Query& query = scratch_.queries[b];
      Product::Eight::pack(query.rows, Product::padded(block_.head_dim), query.planes, b * kRowBlock, block_.head_dim,
                           eight_queries());
    }
  }

  auto* eight_queries() const { return reinterpret_cast<typename Product::Lane*>(scratch_.eight_q); }

  // Adds a tile to all eight rows; the first row and the last see all of it, and so do those between them. Rows past
  // the last one have queries of zeros.
  void add_to_eight(const KeyTile& tile, const KeyTile& ahead) {
    const int planes = scratch_.queries[0].planes;
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      Product::Eight::score(eight_queries(), planes,
                            {tile.k[g], ahead.keys[g] ? ahead.k[g] : tile.k[g], kGroupKeys, block_.cache.k_row_stride},
                            block_.head_dim, scratch_.eight_scores + g * kGroupKeys);
    }
    float factors[kEightRows];
    this->template plain_softmax_of_rows<Simd, kEightRows>(
        0, scratch_.eight_scores, tile, factors, [&](int i, const TileVectors& weights) {
          Product::store_weights(scratch_.queries[0], weights, scratch_.eight_weights + i * KeyTile::kKeys,
                                 kEightRows * KeyTile::kKeys);
        });
    Product::Eight::add_values({scratch_.eight_weights, factors, block_.state}, planes, tile, ahead, block_.value_dim);
  }

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

  void attend(int b, const KeyTile& tile, const KeyTile& ahead) {
    score(b, tile, ahead);
    float factors[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f}, restores[kRowBlock] = {1.0f, 1.0f, 1.0f, 1.0f};
    bool all_seen = true;
    const bool done = softmax_of_four(b, tile, factors, restores);
    for (int i = 0; i < kRowBlock && !done; ++i) {
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

  // One softmax for the four rows of a block, where they see the whole tile and nothing but the scale is between score
  // and logit; false where that is not so.
  bool softmax_of_four(int b, const KeyTile& tile, float (&factors)[kRowBlock], float (&restores)[kRowBlock]) {
    if constexpr (Base::template reduces_eight<Simd>()) {
      const int first = b * kRowBlock, last = first + kRowBlock - 1;
      if (rule_.transforms || block_.state.weighted || careful_ || last >= block_.row_count ||
          !sees_whole(first, tile) || !sees_whole(last, tile)) {
        return false;
      }
      this->template plain_softmax_of_rows<Simd, kRowBlock>(
          first, scratch_.scores, tile, factors, [&](int i, const TileVectors& weights) {
            restores[i] = Product::store_weights(scratch_.queries[b], weights, scratch_.weights + i * KeyTile::kKeys,
                                                 kRowBlock * KeyTile::kKeys);
          });
      return true;
    }
    return false;
  }

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
// turns and a page holds less than a tile of one, what is read two tiles later is prefetched: memory is then read in
// short runs, which take longer to begin. Otherwise it is the next tile.
// A head that needs care runs once more by a call of the same function: a second one would call the kernel's functions
// from two places, and the compiler would no longer put them in line, which costs 5 % (GCC 12, Zen 4).
template <class Product>
void run_chunk_of(const DecodeBlock* blocks, int count, bool careful) {
  using Kernel = DecodeKernel<Product>;
  typename Kernel::KeyTile tiles[2 * kMaxHeadsTogether];  // of this turn and, as far as they are fetched, of the next
  const int ahead = count > 2 && blocks[0].cache.page_size < Kernel::KeyTile::kKeys ? 2 : 1;
  for (int head = 0; head < count; ++head) tiles[head] = Kernel(blocks[head], careful).start();
  while (tiles[0].total > 0) {
    for (int head = 0; head < ahead; ++head) tiles[count + head] = Kernel(blocks[head], careful).following(tiles[head]);
    for (int head = 0; head < count; ++head) {
      Kernel kernel(blocks[head], careful);
      kernel.add(tiles[head], tiles[head + ahead]);
      tiles[head] = kernel.next(tiles[head]);
    }
  }
  for (int head = 0; head < count; ++head) Kernel(blocks[head], careful).finish();
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
