#pragma once

// Attention of new tokens behind those that a KvCache holds, and of tokens to the fixed keys of an encoder. Neither has
// a gradient.

#include <span>

#include "layers/dot_product.h"
#include "rootdk/kv_cache.h"

namespace rootdk {

// Rows that join sequences of a cache: those of the steps, one after another. A sequence that holds nothing yet gets
// its prompt; any other one a token, or several.
struct CachedRows {
  KvCache* cache = nullptr;  // null: no cache
  std::int64_t layer = 0;    // of the cache
  std::span<const KvStep> steps{};
  // Queries that attend() gets, and its outputs, are rounded to bf16 over a bf16 or e4m3 cache: that is half the
  // arithmetic, which is what a long context costs where many query heads share a key head.
  bool rounds_queries = false;
};

// Keys and values that stay the same from call to call.
struct FixedKeys {
  Value k{}, v{};  // [kv_len, kv_heads head_dim], [kv_len, kv_heads value_dim]
};

// Appends k and v of the input to the cache. Prompts then run attention() on the keys as they come, the other rows
// attend() on the keys as the cache holds them. Both are causal. A row has the same bits whatever other steps the call
// has.
Value cached_attention(Context& context, const DotProductInput& input, const AttentionParams& params,
                       const CachedRows& rows);

// The rows of step s against keys[s].
Value fixed_attention(Context& context, const DotProductInput& input, const AttentionParams& params,
                      std::span<const FixedKeys> keys, std::span<const KvStep> steps);

}  // namespace rootdk
