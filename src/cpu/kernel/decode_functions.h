#pragma once

// The decode table of one target, from the product it uses for each type of cache. Included once per target: internal
// linkage.

#include "cpu/kernel/decode.h"
#include "cpu/kernel/read.h"

namespace rootdk::cpu {
namespace {

template <class F32, class Bf16, class F16, class Int8, class E4m3>
struct DecodeFunctions {
  static size_t scratch_bytes(int head_dim, int value_dim, int rows) {
    const size_t each[] = {
        DecodeScratch<F32>::bytes(head_dim, value_dim, rows), DecodeScratch<Bf16>::bytes(head_dim, value_dim, rows),
        DecodeScratch<F16>::bytes(head_dim, value_dim, rows), DecodeScratch<Int8>::bytes(head_dim, value_dim, rows),
        DecodeScratch<E4m3>::bytes(head_dim, value_dim, rows)};
    size_t most = 0;
    for (const size_t bytes : each) most = bytes > most ? bytes : most;
    return most;
  }

  static void run(const DecodeBlock* blocks, int count) {
    switch (blocks[0].cache.kind) {
      case CacheKind::f32: return run_chunk<F32>(blocks, count);
      case CacheKind::bf16: return run_chunk<Bf16>(blocks, count);
      case CacheKind::f16: return run_chunk<F16>(blocks, count);
      case CacheKind::i8: return run_chunk<Int8>(blocks, count);
      case CacheKind::f8e4m3: return run_chunk<E4m3>(blocks, count);
    }
  }

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
    return {.scratch_bytes = scratch_bytes, .run = run, .merge = merge, .store_row = store_row, .read = read_memory};
  }
};

}  // namespace
}  // namespace rootdk::cpu
