#pragma once

// The decode table of one target, from the product it uses for each type of cache. Included once per target: internal
// linkage.

#include "cpu/kernel/decode.h"
#include "cpu/kernel/read.h"

namespace rootdk::cpu {
namespace {

// The kernel over one kind of cache, from the product that it uses.
template <class Product>
constexpr DecodeFunction decode_function() {
  return {.scratch_bytes = DecodeScratch<Product>::bytes, .run = run_chunk<Product>};
}

template <class F32, class Bf16, class F16, class Int8, class E4m3>
struct DecodeFunctions {
  static void merge(const RowStates& into, const RowStates& later, int rows, int value_dim) {
    for (int r = 0; r < rows; ++r) {
      if (later.max[r] == kMinusInfinity) continue;
      const float factor =
          into.weighted ? raise_max<true>(into, r, later.max[r], 1.0f) : raise_max<false>(into, r, later.max[r], 1.0f);
      const float difference = later.max[r] - into.max[r];
      const float share = exp2(difference);
      if (into.weighted) {
        into.weighted[r] += share * (later.weighted[r] + (share > 0.0f ? difference : 0.0f) * later.sum[r]);
        into.squares[r] += share * share * later.squares[r];
      }
      into.sum[r] += share * later.sum[r];
      float* out = into.out + r * into.out_stride;
      const float* added = later.out + r * later.out_stride;
      for (int d = 0; d < value_dim; d += kWidth) {
        const Vec before = Simd::mul(Simd::load(out + d), Simd::set1(factor));
        Simd::store(out + d, Simd::fma(Simd::load(added + d), Simd::set1(share), before));
      }
    }
  }

  static void store_row(const float* row, float factor, int value_dim, void* out, ElementKind kind) {
    with_stored(kind, [&](auto stored) {
      auto* to = static_cast<typename decltype(stored)::Type*>(out);
      int d = 0;
      for (; d + kWidth <= value_dim; d += kWidth) {
        stored.store(to + d, Simd::mul(Simd::load(row + d), Simd::set1(factor)));
      }
      if (d < value_dim) stored.store_first(to + d, Simd::mul(Simd::load(row + d), Simd::set1(factor)), value_dim - d);
    });
  }

  static constexpr DecodeTable table() {
    return {.kinds = {decode_function<F32>(), decode_function<Bf16>(), decode_function<F16>(), decode_function<Int8>(),
                      decode_function<E4m3>()},
            .merge = merge,
            .store_row = store_row,
            .read = read_memory};
  }
};

// The table of a target that has a better kernel for one kind of cache than another one, and that alone.
template <CacheKind kKind, class Product>
constexpr DecodeTable table_of_kind() {
  DecodeTable table;
  table.kinds[static_cast<int>(kKind)] = decode_function<Product>();
  return table;
}

}  // namespace
}  // namespace rootdk::cpu
