#pragma once

// The working memory of a decode kernel. Included once per target: internal linkage.

#include "cpu/kernel/decode_prompt.h"

namespace rootdk::cpu {
namespace {

constexpr int kEightRows = 2 * kRowBlock;

// Whether a product has sums of eight rows.
template <class Product>
constexpr bool has_eight() {
  return requires { typename Product::Eight; };
}

// Whether the products of a prompt read queries in a layout of their own.
template <class Prompt>
constexpr bool packs_queries() {
  return requires { &Prompt::pack_query; };
}

// Tiles that are packed and wait for the rows of a prompt.
template <class Lanes>
struct HeldTiles {
  static constexpr int kMost = Lanes::kTileKeys < kPromptKeys ? kPromptKeys / Lanes::kTileKeys : 1;
  int count = 0;
  Tile<Lanes> tiles[kMost];

  int64_t end() const { return tiles[count - 1].begin + Lanes::kTileKeys; }
};

template <class Product>
struct DecodeScratch {
  using Element = typename Product::Element;
  using Weight = typename Product::Weight;
  using Query = typename Product::Query;
  static constexpr int kTileKeys = Product::Lanes::kTileKeys;
  using Held = HeldTiles<typename Product::Lanes>;

  static size_t bytes(int head_dim, int value_dim, int rows) {
    DecodeScratch measure;
    return measure.place(head_dim, value_dim, (rows + kRowBlock - 1) / kRowBlock);
  }

  DecodeScratch(void* memory, int head_dim, int value_dim, int blocks) : memory_(static_cast<unsigned char*>(memory)) {
    place(head_dim, value_dim, blocks);
  }

  float* scores;          // [kRowBlock, kTileKeys]; then the weights in f32
  Weight* weights;        // [planes, kRowBlock, kTileKeys]
  Query* queries;         // [row blocks]
  unsigned char* packed;  // [row blocks, packed_stride]
  size_t packed_stride;
  Element* values;  // [kTileKeys, value_dim]: of a tile with some keys left out
  float* out;       // [kRowBlock, out_stride]

  // Of eight rows: see Product::Eight.
  float* eight_scores;    // [kEightRows, kTileKeys]
  Weight* eight_weights;  // [planes, kEightRows, kTileKeys]
  unsigned char* eight_q;

  // Of many rows: see Product::Prompt.
  Held* held;
  float* prompt_scores;     // [tiles, kPromptRows, kTileKeys]; then the weights in f32
  Weight* prompt_weights;   // [tiles, planes, kPromptRows, kTileKeys]
  unsigned char* prompt_q;  // [rows, prompt_stride]
  size_t prompt_stride;
  unsigned char* prompt_k;  // the keys of held tiles, packed
  unsigned char* prompt_v;

  float* scores_of_tile(int t) const { return prompt_scores + t * kPromptRows * kTileKeys; }
  Weight* weights_of_tile(int t) const { return prompt_weights + t * Product::kWeightPlanes * kPromptRows * kTileKeys; }

 private:
  DecodeScratch() = default;

  static constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

  size_t place(int head_dim, int value_dim, int blocks) {
    size_t used = 0;
    auto take = [&](size_t bytes) {
      unsigned char* taken = memory_ ? memory_ + used : nullptr;
      used += aligned(bytes);
      return taken;
    };
    const auto count = static_cast<size_t>(blocks), columns = static_cast<size_t>(value_dim);
    packed_stride = aligned(Product::query_bytes(head_dim));
    scores = reinterpret_cast<float*>(take(sizeof(float) * kRowBlock * kTileKeys));
    weights = reinterpret_cast<Weight*>(take(sizeof(Weight) * Product::kWeightPlanes * kRowBlock * kTileKeys));
    queries = reinterpret_cast<Query*>(take(sizeof(Query) * count));
    packed = take(packed_stride * count);
    values = reinterpret_cast<Element*>(take(sizeof(Element) * kTileKeys * columns));
    out = reinterpret_cast<float*>(take(sizeof(float) * kRowBlock * aligned(columns)));
    if constexpr (has_eight<Product>()) {
      if (blocks * kRowBlock == kEightRows) {
        eight_scores = reinterpret_cast<float*>(take(sizeof(float) * kEightRows * kTileKeys));
        eight_weights =
            reinterpret_cast<Weight*>(take(sizeof(Weight) * Product::kWeightPlanes * kEightRows * kTileKeys));
        eight_q = take(Product::Eight::query_bytes(head_dim));
      }
    }
    if (blocks * kRowBlock <= kFewRows) return used;
    constexpr size_t kRowsOfTiles = Held::kMost * kPromptRows;
    held = reinterpret_cast<Held*>(take(sizeof(Held)));
    prompt_scores = reinterpret_cast<float*>(take(sizeof(float) * kRowsOfTiles * kTileKeys));
    prompt_weights =
        reinterpret_cast<Weight*>(take(sizeof(Weight) * Product::kWeightPlanes * kRowsOfTiles * kTileKeys));
    if constexpr (packs_queries<typename Product::Prompt>()) {
      prompt_stride = aligned(Product::Prompt::query_bytes(head_dim));
      prompt_q = take(prompt_stride * count * kRowBlock);
    }
    prompt_k = take(Held::kMost * Product::Prompt::key_bytes(head_dim));
    prompt_v = take(Held::kMost * Product::Prompt::value_bytes(value_dim));
    return used;
  }

  unsigned char* memory_ = nullptr;
};

}  // namespace
}  // namespace rootdk::cpu
