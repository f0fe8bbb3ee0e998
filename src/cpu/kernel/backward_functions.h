#pragma once

// The table of the backward pass of one target, from its product (Gemm) and its packing. Included once per target:
// internal linkage.

#include "cpu/kernel/backward.h"
#include "cpu/kernel/pack_f32.h"

namespace rootdk::cpu {
namespace {

struct BackwardFloatPacking : FloatPacking {
  static SourceRows prepared(const SourceRows& source, float* scratch) {
    return source.normalise ? normalised(source, scratch) : source;
  }
  static bool query_rows(const SourceRows& source, void* packed) {
    return values(source, packed, round_up(kBackwardRows, FloatGemm::kPanel) * FloatGemm::kPanel);
  }
};

// kWidth rows as columns: square[d] holds dimension first + d of each row; what lies beyond is zero.
template <class StoredType>
void load_columns(const void* const* rows, int count, int first, int dims, Vec (&square)[kWidth]) {
  for (int i = 0; i < kWidth; ++i) {
    if (i >= count) {
      square[i] = Simd::zero();
      continue;
    }
    const auto* row = static_cast<const typename StoredType::Type*>(rows[i]) + first;
    square[i] = dims >= kWidth ? StoredType::load(row) : StoredType::load_first(row, dims);
  }
  Simd::transpose(square);
}

// Dimensions are summed one by one as the f32 products do: where a row has but one key, out is its value, and
// g_out . v - g_out . out is zero to the bit.
inline void row_dots(const RowDots& dots) {
  with_stored(dots.kind, [&](auto stored) {
    using StoredType = decltype(stored);
    for (int r = 0; r < dots.count; r += kWidth) {
      const int count = smaller(kWidth, dots.count - r);
      Vec sum = Simd::zero();
      for (int d = 0; d < dots.dim; d += kWidth) {
        const int dims = smaller(kWidth, dots.dim - d);
        Vec a[kWidth], b[kWidth];
        load_columns<StoredType>(dots.a + r, count, d, dims, a);
        load_columns<StoredType>(dots.b + r, count, d, dims, b);
        for (int i = 0; i < dims; ++i) sum = Simd::fma(a[i], b[i], sum);
      }
      Simd::store_first(dots.to + r, sum, count);
    }
  });
}

// The gradient of x / |x| becomes that of x: dx = (g - (g . n) n) / |x| * scale with n = x / |x|, in double, which
// holds the square of any float, and what overflows before it is scaled. Zero rows have no gradient, nor have masked
// ones, whatever they hold.
inline void unnormalise(const float* gradient, const float* x, int dim, float scale, float* to) {
  bool reached = false;
  for (int d = 0; d < dim; ++d) reached |= gradient[d] != 0;
  if (!reached) {
    for (int d = 0; d < dim; ++d) to[d] = 0.0f;
    return;
  }
  double square = 0, dot = 0;
  for (int d = 0; d < dim; ++d) square += static_cast<double>(x[d]) * x[d];
  const double inverse = square > 0 ? 1.0 / __builtin_sqrt(square) : (square == 0 ? 0.0 : square);
  for (int d = 0; d < dim; ++d) dot += static_cast<double>(gradient[d]) * x[d];
  dot *= inverse;
  for (int d = 0; d < dim; ++d) {
    to[d] = square == 0 ? 0.0f : static_cast<float>((gradient[d] - dot * inverse * x[d]) * inverse * scale);
  }
}

// kWidth rows at a time; what lies beyond rows and dim is there, and does not matter.
inline void store_transposed_rows(const GradientRows& rows) {
  with_stored(rows.kind, [&](auto stored) {
    auto* to = static_cast<typename decltype(stored)::Type*>(rows.to);
    const Vec scale = Simd::set1(rows.scale);
    for (int i = 0; i < rows.rows; i += kWidth) {
      for (int d = 0; d < rows.dim; d += kWidth) {
        Vec square[kWidth];
        for (int j = 0; j < kWidth; ++j) square[j] = Simd::load(rows.from + (d + j) * rows.from_stride + i);
        Simd::transpose(square);
        const int dims = smaller(kWidth, rows.dim - d);
        for (int r = 0; r < smaller(kWidth, rows.rows - i); ++r) {
          stored.store_first(to + (i + r) * rows.to_stride + d, Simd::mul(square[r], scale), dims);
        }
      }
    }
  });
}

// scratch: two rows, for the cosine score.
inline void store_gradient_rows(const GradientRows& rows, float* scratch) {
  if (rows.transposed) return store_transposed_rows(rows);
  with_stored(rows.kind, [&](auto stored) {
    using Type = typename decltype(stored)::Type;
    const Vec scale = Simd::set1(rows.source ? 1.0f : rows.scale);
    for (int i = 0; i < rows.rows; ++i) {
      const float* from = rows.from + i * rows.from_stride;
      if (rows.source) {
        float* x = scratch + round_up(rows.dim, kWidth);
        with_stored(rows.source_kind, [&](auto given) {
          using Source = typename decltype(given)::Type;
          pack_float_rows<decltype(given)>({.data = static_cast<const Source*>(rows.source) + i * rows.source_stride,
                                            .row_stride = 0,
                                            .kind = rows.source_kind,
                                            .rows = 1,
                                            .dim = rows.dim,
                                            .normalise = false},
                                           x);
        });
        unnormalise(from, x, rows.dim, rows.scale, scratch);
        from = scratch;
      }
      auto* to = static_cast<Type*>(rows.to) + i * rows.to_stride;
      int d = 0;
      for (; d + kWidth <= rows.dim; d += kWidth) stored.store(to + d, Simd::mul(Simd::load(from + d), scale));
      if (d < rows.dim) stored.store_first(to + d, Simd::mul(Simd::load(from + d), scale), rows.dim - d);
    }
  });
}

// Kernel is the backward pass of the target, where it differs from the common one.
template <class Gemm, class Packing, class Kernel = BackwardKernel<Gemm>>
struct BackwardFunctions {
  static BackwardGeometry geometry(int head_dim, int value_dim) {
    return {.element_bytes = static_cast<int>(sizeof(typename Gemm::Element)),
            .panel = Gemm::kPanel,
            .rows = Gemm::kRows,
            .depth_multiple = Gemm::kDepthMultiple,
            .key_block = Kernel::key_block(head_dim, value_dim),
            .transposed_sums = Kernel::kTransposedSums};
  }
  static bool pack_values(const SourceRows& source, void* packed, int64_t panel_stride, float* scratch) {
    return Packing::values(Packing::prepared(source, scratch), packed, panel_stride);
  }
  static size_t scratch_bytes(int head_dim, int value_dim) {
    return BackwardScratch<Gemm>::bytes(Kernel::key_block(head_dim, value_dim));
  }
  static void tile(const BackwardTile& tile) {
    [[maybe_unused]] const typename Gemm::Thread thread;
    Kernel(tile).run();
  }

  static constexpr BackwardTable table() {
    return {.geometry = geometry,
            .pack_rows = Packing::rows,
            .pack_keys = Packing::keys,
            .pack_values = pack_values,
            .pack_query_rows = Packing::query_rows,
            .scratch_bytes = scratch_bytes,
            .tile = tile,
            .dots = row_dots,
            .store_rows = store_gradient_rows};
  }
};

}  // namespace
}  // namespace rootdk::cpu
