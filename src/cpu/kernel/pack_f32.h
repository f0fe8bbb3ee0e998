#pragma once

// Packing into f32 operands. Included once per target: internal linkage.

#include "cpu/kernel/gemm_f32.h"
#include "cpu/kernel/load.h"

namespace rootdk::cpu {
namespace {

// The rows divided by their lengths, in f32 [rows, dim]; zero rows stay zero. Double precision holds the square of any
// float, so that huge and denormal rows come out right.
inline SourceRows normalised(const SourceRows& source, float* scratch) {
  for (int i = 0; i < source.rows; ++i) {
    double squares[4] = {0, 0, 0, 0};
    float* row = scratch + static_cast<ptrdiff_t>(i) * source.dim;
    with_stored(source.kind, [&](auto stored) {
      const auto* from = static_cast<const typename decltype(stored)::Type*>(source.data) + i * source.row_stride;
      int d = 0;
      for (; d + kWidth <= source.dim; d += kWidth) Simd::store(row + d, stored.load(from + d));
      if (d < source.dim) Simd::store_first(row + d, stored.load_first(from + d, source.dim - d), source.dim - d);
    });
    for (int d = 0; d < source.dim; ++d) squares[d % 4] += static_cast<double>(row[d]) * row[d];
    const double square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    const double inverse = square > 0 ? 1.0 / __builtin_sqrt(square) : (square == 0 ? 0.0 : square);
    for (int d = 0; d < source.dim; ++d) row[d] = static_cast<float>(row[d] * inverse);
  }
  return {.data = scratch,
          .row_stride = source.dim,
          .kind = ElementKind::f32,
          .rows = source.rows,
          .dim = source.dim,
          .normalise = false};
}

template <class StoredType>
void pack_float_rows(const SourceRows& source, float* packed) {
  for (int i = 0; i < source.rows; ++i) {
    const auto* from = static_cast<const typename StoredType::Type*>(source.data) + i * source.row_stride;
    float* to = packed + static_cast<ptrdiff_t>(i) * source.dim;
    int d = 0;
    for (; d + kWidth <= source.dim; d += kWidth) Simd::store(to + d, StoredType::load(from + d));
    if (d < source.dim) Simd::store_first(to + d, StoredType::load_first(from + d, source.dim - d), source.dim - d);
  }
}

// One square of kWidth keys by kWidth dimensions (fewer at the edges) goes to to[dimension * panel + key].
template <class StoredType>
void pack_transposed_square(const typename StoredType::Type* from, int64_t row_stride, int keys, int dims, float* to) {
  Vec square[kWidth];
  if (keys == kWidth && dims == kWidth) {
    for (int i = 0; i < kWidth; ++i) square[i] = StoredType::load(from + i * row_stride);
    Simd::transpose(square);
    for (int d = 0; d < kWidth; ++d) Simd::store(to + d * FloatGemm::kPanel, square[d]);
    return;
  }
  for (int i = 0; i < kWidth; ++i) {
    if (i >= keys) {
      square[i] = Simd::zero();
    } else {
      square[i] = dims == kWidth ? StoredType::load(from + i * row_stride)
                                 : StoredType::load_first(from + i * row_stride, dims);
    }
  }
  Simd::transpose(square);
  for (int d = 0; d < dims; ++d) Simd::store(to + d * FloatGemm::kPanel, square[d]);
}

template <class StoredType>
void pack_float_keys(const SourceRows& source, float* packed) {
  constexpr int kPanel = FloatGemm::kPanel;
  const auto* keys = static_cast<const typename StoredType::Type*>(source.data);
  for (int first = 0; first < source.rows; first += kPanel, packed += static_cast<ptrdiff_t>(kPanel) * source.dim) {
    for (int part = 0; part < kPanel; part += kWidth) {
      const int count = larger(0, smaller(kWidth, source.rows - first - part));
      for (int d = 0; d < source.dim; d += kWidth) {
        const int dims = smaller(kWidth, source.dim - d);
        pack_transposed_square<StoredType>(keys + (first + part) * source.row_stride + d, source.row_stride, count,
                                           dims, packed + static_cast<ptrdiff_t>(d) * kPanel + part);
      }
    }
  }
}

template <class StoredType>
bool pack_float_values(const SourceRows& source, float* packed, int64_t panel_stride) {
  constexpr int kPanel = FloatGemm::kPanel;
  Vec poison = Simd::zero();  // 0 x is NaN for an infinity or a NaN, and stays
  const auto* from = static_cast<const typename StoredType::Type*>(source.data);
  for (int key = 0; key < source.rows; ++key, from += source.row_stride) {
    float* row = packed + static_cast<ptrdiff_t>(key) * kPanel;
    int d = 0;
    for (; d + kPanel <= source.dim; d += kPanel, row += panel_stride) {
      for (int j = 0; j < kPanel; j += kWidth) {
        const Vec x = StoredType::load(from + d + j);
        poison = Simd::fma(x, Simd::zero(), poison);
        Simd::store(row + j, x);
      }
    }
    for (; d < source.dim; d += kWidth) {
      const int dims = source.dim - d;
      const Vec x = dims >= kWidth ? StoredType::load(from + d) : StoredType::load_first(from + d, dims);
      poison = Simd::fma(x, Simd::zero(), poison);
      Simd::store(row + d % kPanel, x);
    }
  }
  for (int key = source.rows; key < round_up(source.rows, kPanel); ++key) {
    float* row = packed + static_cast<ptrdiff_t>(key) * kPanel;
    for (int d = 0; d < source.dim; d += kWidth)
      Simd::store(row + d / kPanel * panel_stride + d % kPanel, Simd::zero());
  }
  return Simd::reduce_add(poison) != 0.0f;
}

// pack_rows, pack_keys and pack_values of the table.
struct FloatPacking {
  static void rows(const SourceRows& source, void* packed, float* scratch) {
    const SourceRows rows = source.normalise ? normalised(source, scratch) : source;
    with_stored(rows.kind, [&](auto stored) { pack_float_rows<decltype(stored)>(rows, static_cast<float*>(packed)); });
  }
  static void keys(const SourceRows& source, void* packed, float* scratch) {
    const SourceRows rows = source.normalise ? normalised(source, scratch) : source;
    with_stored(rows.kind, [&](auto stored) { pack_float_keys<decltype(stored)>(rows, static_cast<float*>(packed)); });
  }
  static bool values(const SourceRows& source, void* packed, int64_t panel_stride) {
    return with_stored(source.kind, [&](auto stored) {
      return pack_float_values<decltype(stored)>(source, static_cast<float*>(packed), panel_stride);
    });
  }
};

}  // namespace
}  // namespace rootdk::cpu
