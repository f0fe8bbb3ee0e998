#pragma once

// Products of a warp's tiles: on tensor cores for bf16 and f16, in plain multiply-adds for float. Both leave their
// results in the same layout (tile.h), so that everything around them is written once. The additive score and its
// gradients replace the product where the score is not a product.

#include "cuda/portable/tile.h"

namespace rootdk::cuda::portable {

// c [16 x 8 N] += a [16 x depth] b^T, b [8 N x depth]. a: the warp's 16 rows; both in shared memory.
template <class Compute, int N>
__device__ void add_rows_by_rows(WarpTile<N>& c, const Compute* a, const Compute* b, int pitch, int depth) {
  const int lane = lane_index();
  if constexpr (sizeof(Compute) == 2) {
    static_assert(N % 2 == 0);
    const Compute* a_row = a + (lane % 16) * pitch + lane / 16 * 8;
    const Compute* b_row = b + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8;
#pragma unroll 2
    for (int k = 0; k < depth; k += 16) {
      std::uint32_t a_fragment[4];
      ptx::load_matrices(a_fragment, a_row + k);
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        std::uint32_t b_fragment[4];
        ptx::load_matrices(b_fragment, b_row + 8 * n * pitch + k);
        ptx::multiply_add<Compute>(c[n], a_fragment, b_fragment[0], b_fragment[1]);
        ptx::multiply_add<Compute>(c[n + 1], a_fragment, b_fragment[2], b_fragment[3]);
      }
    }
  } else {
    const float* a_row = a + fragment_row(0) * pitch;
    const float* b_row = b + fragment_column(0, 0) * pitch;
    for (int k = 0; k < depth; k += 4) {
      const float4 a0 = *reinterpret_cast<const float4*>(a_row + k);
      const float4 a1 = *reinterpret_cast<const float4*>(a_row + 8 * pitch + k);
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float4 bv = *reinterpret_cast<const float4*>(b_row + (8 * n + e) * pitch + k);
          c[n][e] = fmaf(a0.w, bv.w, fmaf(a0.z, bv.z, fmaf(a0.y, bv.y, fmaf(a0.x, bv.x, c[n][e]))));
          c[n][e + 2] = fmaf(a1.w, bv.w, fmaf(a1.z, bv.z, fmaf(a1.y, bv.y, fmaf(a1.x, bv.x, c[n][e + 2]))));
        }
      }
    }
  }
}

// One column of a warp's tile, in the lane's upper (half 0) or lower row, from the lane of that row which holds it. The
// choice is written as a comparison with constants so that the tile stays in registers.
template <int K>
__device__ float from_row(const WarpTile<K>& tile, int column, int half) {
  float held = 0.0f;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column / 8 == k) held = column % 2 ? tile[k][2 * half + 1] : tile[k][2 * half];
  }
  return __shfl_sync(0xffffffffu, held, lane_index() / 4 * 4 + column % 8 / 2);
}

// c [16 x 8 N] += p [16 x 8 K] b, b [8 K x 8 N] in shared memory, p in registers (rounded to Compute on the way).
template <class Compute, int N, int K>
__device__ void add_tile_by_columns(WarpTile<N>& c, const WarpTile<K>& p, const Compute* b, int pitch) {
  const int lane = lane_index();
  if constexpr (sizeof(Compute) == 2) {
    static_assert(N % 2 == 0 && K % 2 == 0);
    const Compute* b_row = b + (lane % 16) * pitch + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
      const std::uint32_t a_fragment[4] = {ptx::pack<Compute>(p[k][0], p[k][1]), ptx::pack<Compute>(p[k][2], p[k][3]),
                                           ptx::pack<Compute>(p[k + 1][0], p[k + 1][1]),
                                           ptx::pack<Compute>(p[k + 1][2], p[k + 1][3])};
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        std::uint32_t b_fragment[4];
        ptx::load_matrices_transposed(b_fragment, b_row + 8 * k * pitch + 8 * n);
        ptx::multiply_add<Compute>(c[n], a_fragment, b_fragment[0], b_fragment[1]);
        ptx::multiply_add<Compute>(c[n + 1], a_fragment, b_fragment[2], b_fragment[3]);
      }
    }
  } else {
    const float* b_column = b + fragment_column(0, 0);
#pragma unroll
    for (int k = 0; k < 8 * K; ++k) {
      const float p0 = from_row<K>(p, k, 0), p1 = from_row<K>(p, k, 1);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float2 bv = *reinterpret_cast<const float2*>(b_column + k * pitch + 8 * n);
        c[n][0] = fmaf(p0, bv.x, c[n][0]);
        c[n][1] = fmaf(p0, bv.y, c[n][1]);
        c[n][2] = fmaf(p1, bv.x, c[n][2]);
        c[n][3] = fmaf(p1, bv.y, c[n][3]);
      }
    }
  }
}

// Tiles in memory, as arguments of the function below.
template <int N, int K>
struct CarefulTiles {
  float c[N][4], p[K][4];
};

template <class Compute, int N, int K>
__device__ __noinline__ void add_carefully(CarefulTiles<N, K>& tiles, const Compute* b, int pitch) {
  for (int k = 0; k < 8 * K; ++k) {
    const int owner = lane_index() / 4 * 4 + k % 8 / 2;
    const float p0 = __shfl_sync(0xffffffffu, tiles.p[k / 8][k % 2], owner);
    const float p1 = __shfl_sync(0xffffffffu, tiles.p[k / 8][2 + k % 2], owner);
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = static_cast<float>(b[k * pitch + fragment_column(n, e)]);
        if (p0 != 0.0f) tiles.c[n][e] = fmaf(p0, x, tiles.c[n][e]);
        if (p1 != 0.0f) tiles.c[n][e + 2] = fmaf(p1, x, tiles.c[n][e + 2]);
      }
    }
  }
}

// The same product, skipping the zeros of p: the value of a key of weight 0 may be NaN or infinite and must not reach
// the sum. Used only by blocks that saw such a value.
template <class Compute, int N, int K>
__device__ void add_tile_by_columns_carefully(WarpTile<N>& c, const WarpTile<K>& p, const Compute* b, int pitch) {
  CarefulTiles<N, K> tiles;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int n = 0; n < N; ++n) tiles.c[n][e] = c[n][e];
#pragma unroll
    for (int k = 0; k < K; ++k) tiles.p[k][e] = p[k][e];
  }
  add_carefully<Compute, N, K>(tiles, b, pitch);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int n = 0; n < N; ++n) c[n][e] = tiles.c[n][e];
  }
}

// Whether any element of the tile is NaN or infinite.
template <int N>
__device__ bool any_not_finite(const WarpTile<N>& tile) {
  bool found = false;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) found = found || !(fabsf(tile[n][e]) < INFINITY);
  }
  return found;
}

// c[i][j] = sum over d of vector[d] tanh(a[i][d] + b[j][d]).
template <int N>
__device__ void add_additive_scores(WarpTile<N>& c, const float* a, const float* b, int pitch, const float* vector,
                                    int head_dim) {
  for (int d = 0; d < head_dim; ++d) {
    const float a0 = a[fragment_row(0) * pitch + d], a1 = a[fragment_row(2) * pitch + d];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float bv = b[fragment_column(n, e) * pitch + d];
        c[n][e] = fmaf(vector[d], tanhf(a0 + bv), c[n][e]);
        c[n][e + 2] = fmaf(vector[d], tanhf(a1 + bv), c[n][e + 2]);
      }
    }
  }
}

// The gradient of the additive score by one of its two arguments, which enter alike. gradient [16 x 8 K] is by the
// score, `own` the warp's 16 rows, `other` the 8 K rows on the other side; columns count from `first_column`, and
// vector is zero past head_dim.
//   c[i][d] += vector[d] sum over j of gradient[i][j] (1 - tanh^2(own[i][d] + other[j][d]))
//   by_vector[d], summed over the lane's rows: gradient[i][j] tanh(own[i][d] + other[j][d])
template <int N, int K>
__device__ void add_additive_gradients(WarpTile<N>& c, float (&by_vector)[N][2], const WarpTile<K>& gradient,
                                       const float* own, const float* other, int pitch, const float* vector,
                                       int first_column) {
#pragma unroll 1
  for (int j = 0; j < 8 * K; ++j) {
    const float g0 = from_row<K>(gradient, j, 0), g1 = from_row<K>(gradient, j, 1);
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int d = first_column + fragment_column(n, e);
        const float bv = other[j * pitch + d];
        // A dropped key has no gradient, and may be NaN.
        const float t0 = g0 == 0.0f ? 0.0f : tanhf(own[fragment_row(0) * pitch + d] + bv);
        const float t1 = g1 == 0.0f ? 0.0f : tanhf(own[fragment_row(2) * pitch + d] + bv);
        c[n][e] = fmaf(g0 * vector[d], 1.0f - t0 * t0, c[n][e]);
        c[n][e + 2] = fmaf(g1 * vector[d], 1.0f - t1 * t1, c[n][e + 2]);
        by_vector[n][e] += g0 * t0 + g1 * t1;
      }
    }
  }
}

}  // namespace rootdk::cuda::portable
