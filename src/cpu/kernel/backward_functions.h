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
};

inline float row_dot(const void* a, const void* b, int dim, ElementKind kind) {
  return with_stored(kind, [&](auto stored) {
    using Type = typename decltype(stored)::Type;
    const auto* x = static_cast<const Type*>(a);
    const auto* y = static_cast<const Type*>(b);
    Vec sum = Simd::zero();
    int d = 0;
    for (; d + kWidth <= dim; d += kWidth) sum = Simd::fma(stored.load(x + d), stored.load(y + d), sum);
    if (d < dim) sum = Simd::fma(stored.load_first(x + d, dim - d), stored.load_first(y + d, dim - d), sum);
    return Simd::reduce_add(sum);
  });
}

// The gradient of x / |x| becomes that of x, in place of nothing: dx = (g - (g . n) n) / |x| with n = x / |x|, in
// double, which holds the square of any float. Zero rows have no gradient.
inline void unnormalise(const float* gradient, const float* x, int dim, float* to) {
  double square = 0, dot = 0;
  for (int d = 0; d < dim; ++d) square += static_cast<double>(x[d]) * x[d];
  const double inverse = square > 0 ? 1.0 / __builtin_sqrt(square) : (square == 0 ? 0.0 : square);
  for (int d = 0; d < dim; ++d) dot += static_cast<double>(gradient[d]) * x[d];
  dot *= inverse;
  for (int d = 0; d < dim; ++d) {
    to[d] = square == 0 ? 0.0f : static_cast<float>((gradient[d] - dot * inverse * x[d]) * inverse);
  }
}

// scratch: two rows, for the cosine score.
inline void store_gradient_rows(const GradientRows& rows, float* scratch) {
  with_stored(rows.kind, [&](auto stored) {
    using Type = typename decltype(stored)::Type;
    const Vec scale = Simd::set1(rows.scale);
    for (int i = 0; i < rows.rows; ++i) {
      const float* from = rows.from + i * rows.from_stride;
      if (rows.source) {
        const SourceRows source{.data = static_cast<const Type*>(rows.source) + i * rows.source_stride,
                                .row_stride = 0,
                                .kind = rows.kind,
                                .rows = 1,
                                .dim = rows.dim,
                                .normalise = false};
        float* x = scratch + round_up(rows.dim, kWidth);
        pack_float_rows<decltype(stored)>(source, x);
        unnormalise(from, x, rows.dim, scratch);
        from = scratch;
      }
      auto* to = static_cast<Type*>(rows.to) + i * rows.to_stride;
      int d = 0;
      for (; d + kWidth <= rows.dim; d += kWidth) stored.store(to + d, Simd::mul(Simd::load(from + d), scale));
      if (d < rows.dim) stored.store_first(to + d, Simd::mul(Simd::load(from + d), scale), rows.dim - d);
    }
  });
}

template <class Gemm, class Packing>
struct BackwardFunctions {
  using Kernel = BackwardKernel<Gemm>;

  static BackwardGeometry geometry(int head_dim, int value_dim) {
    return {.element_bytes = static_cast<int>(sizeof(typename Gemm::Element)),
            .panel = Gemm::kPanel,
            .rows = Gemm::kRows,
            .depth_step = Gemm::kDepthStep,
            .key_block = Kernel::key_block(head_dim, value_dim)};
  }
  static bool pack_values(const SourceRows& source, void* packed, int64_t panel_stride, float* scratch) {
    return Packing::values(Packing::prepared(source, scratch), packed, panel_stride);
  }
  static size_t scratch_bytes(int head_dim, int value_dim) {
    return BackwardScratch<Gemm>::bytes(Kernel::key_block(head_dim, value_dim));
  }
  static void tile(const BackwardTile& tile) { Kernel(tile).run(); }

  static constexpr BackwardTable table() {
    return {.geometry = geometry,
            .pack_rows = Packing::rows,
            .pack_keys = Packing::keys,
            .pack_values = pack_values,
            .scratch_bytes = scratch_bytes,
            .tile = tile,
            .dot = row_dot,
            .store_rows = store_gradient_rows};
  }
};

}  // namespace
}  // namespace rootdk::cpu
