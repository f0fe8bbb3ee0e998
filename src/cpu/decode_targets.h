#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cpu/decode_table.h"
#include "cpu/linear_table.h"

namespace rootdk::cpu {

// A target of this build for what runs beside attention: decoding over a cache, products with stored weights. Its name
// is the one that attention uses, but for avx512vnni and neondot, whose products of bytes are for caches and stored
// weights alone.
struct DecodeTarget {
  std::string_view name;
  const DecodeTable& (*kernels)() = nullptr;
  const LinearTable& (*linear)() = nullptr;
  bool few_queries = true;             // false: attention() has these kernels for few queries under another name
  std::string (*missing)() = nullptr;  // what the processor lacks, as a sentence; empty: nothing
};

// In the order in which they are preferred. One of decode_targets_x86.cpp, _arm.cpp, _wasm.cpp, _none.cpp provides it.
std::span<const DecodeTarget> decode_targets();

// A table with the better kernels that another one has for some kinds of cache.
inline DecodeTable with_kinds(DecodeTable table, const DecodeTable& better) {
  for (int kind = 0; kind < kCacheKinds; ++kind) {
    if (better.kinds[kind].run) table.kinds[kind] = better.kinds[kind];
  }
  return table;
}

// The same for products with stored weights on tiles.
inline LinearTable with_tiles(LinearTable table, const LinearTable& better) {
  table.narrow = better.narrow;
  table.pack_x = better.pack_x;
  table.tiled_integers = better.tiled_integers;
  return table;
}

}  // namespace rootdk::cpu
