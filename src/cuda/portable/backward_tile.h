#pragma once

// What the backward kernels share: the layout of shared memory, and the way from scores to gradients.
//
// With p the weights, m the dropout factors (0 or keep_scale) and dp = grad_out v^T, the gradient by a logit is
//     p (m dp - g (ln p + 1) + constant)
// where g is the upstream gradient of the row's entropy and `constant` collects what is the same for the whole row
// (row_passes.h). Times the slope of the logit it is the gradient by the scaled score; the scale itself multiplies the
// finished sums, so that what is rounded to 16 bits for the products is not scaled.

#include "cuda/common/row_statistics.h"
#include "cuda/portable/logits.h"
#include "cuda/portable/product.h"

namespace rootdk::cuda::portable {

// The tiles that stay: kOwned rows of two matrices. The tiles that stream past: kStream rows of two matrices, in one or
// two stages. Then, for the additive score, its vector for each stage; for the cosine score, the warps' raw scores.
template <class Compute, int kStream>
struct BackwardShared {
  using Shape = TileShape<Compute>;
  int head_pitch = 0, value_pitch = 0, stages = 1;
  int vector_length = 0;  // floats
  bool keeps_scores = false;

  __host__ __device__ explicit BackwardShared(const BackwardArguments& args)
      : head_pitch(pitch_of<Compute>(args.head_columns)),
        value_pitch(pitch_of<Compute>(args.value_columns)),
        stages(args.stages),
        vector_length(args.rule.additive_v ? args.head_columns : 0),
        keeps_scores(static_cast<bool>(args.rule.q_inverse_norm)) {}

  __host__ __device__ int owned_value() const { return Shape::kOwned * head_pitch; }
  __host__ __device__ int stream_head(int stage) const {
    return (Shape::kOwned + stage * kStream) * (head_pitch + value_pitch);
  }
  __host__ __device__ int stream_value(int stage) const { return stream_head(stage) + kStream * head_pitch; }
  __host__ __device__ int vector_bytes_at() const { return stream_head(stages) * static_cast<int>(sizeof(Compute)); }
  __host__ __device__ int scores_bytes_at() const {
    return vector_bytes_at() + stages * vector_length * static_cast<int>(sizeof(float));
  }
  __host__ __device__ int bytes() const {
    return scores_bytes_at() + (keeps_scores ? Shape::kOwned * kStream * static_cast<int>(sizeof(float)) : 0);
  }
};

struct RowTerms {
  float lse = -INFINITY;
  float constant = 0.0f;
  float entropy_gradient = 0.0f;
};

// The terms of query i; those of a row without keys where i is past the sequence.
__device__ inline RowTerms load_terms(const RowTermViews& views, const HeadRule& head, int i) {
  RowTerms terms;
  if (i >= head.sequence.q_len) return terms;
  const int entry = head.sequence.entry, row = head.sequence.q_begin + i;
  terms.lse = views.lse(entry, head.head, row);
  terms.constant = views.constant(entry, head.head, row);
  if (views.entropy_gradient) terms.entropy_gradient = views.entropy_gradient(entry, head.head, row);
  return terms;
}

// The weight of a key from its logit; 0 throughout a row without keys.
__device__ inline float weight_of(float logit, float lse) { return lse == -INFINITY ? 0.0f : exp_natural(logit - lse); }

// In: s raw scores, dp = grad_out v^T. Out: s the weights that multiply values, dp the gradient by the logits, slope
// the derivative of each logit by its scaled score. terms(n, e) gives the RowTerms of an element's query.
template <int N, Rows kRows, class Terms>
__device__ void to_gradients(WarpTile<N>& s, WarpTile<N>& dp, FeatureTile<N>& features, const HeadRule& head,
                             TileCorner<kRows> corner, bool ranges_keep, Terms terms) {
  to_logits<N>(s, features, head, corner, ranges_keep);
  const TileBits keeps = dropout_keeps<N>(head, corner);
  for_each_element<N>([&](int n, int e) {
    const RowTerms row = terms(n, e);
    const float p = weight_of(s[n][e], row.lse);
    const float factor = has_bit(keeps, n, e) ? head.rule.dropout.keep_scale : 0.0f;
    const float inner = factor * dp[n][e] - row.entropy_gradient * (s[n][e] - row.lse + 1.0f) + row.constant;
    dp[n][e] = p == 0.0f ? 0.0f : p * inner;  // a dropped key may have anything in `inner`
    s[n][e] = p * factor;
  });
}

// Gradient by logits to gradient by scaled scores, in place.
template <int N>
__device__ void through_slope(WarpTile<N>& gradient, const FeatureTile<N>& features, const HeadRule& head) {
  if (head.plain) return;
  for_each_element<N>([&](int n, int e) {
    gradient[n][e] = gradient[n][e] == 0.0f ? 0.0f : gradient[n][e] * features.slope[4 * n + e];
  });
}

// The scores of a warp's tile: products, or the additive score.
template <class Compute, int N, bool Additive>
__device__ void add_scores(WarpTile<N>& s, const Compute* own, const Compute* stream, int pitch, const float* vector,
                           int head_dim) {
  if constexpr (Additive) {
    add_additive_scores<N>(s, own, stream, pitch, vector, head_dim);
  } else {
    add_rows_by_rows<Compute, N>(s, own, stream, pitch, round_up(head_dim, kDepthStep));
  }
}

// The product with the streamed tile; `careful` skips weights of 0 (product.h).
template <class Compute, int N, int K>
__device__ void add_stream(WarpTile<N>& c, const WarpTile<K>& p, const Compute* stream, int pitch, bool careful) {
  if (careful) {
    add_tile_by_columns_carefully<Compute, N, K>(c, p, stream, pitch);
  } else {
    add_tile_by_columns<Compute, N, K>(c, p, stream, pitch);
  }
}

// The vector of the additive score, zero past head_dim.
__device__ inline void load_vector(float* vector, int length, const LogitRule& rule, int head) {
  for (int d = static_cast<int>(threadIdx.x); d < length; d += static_cast<int>(blockDim.x)) {
    vector[d] = d < rule.head_dim ? rule.additive_v(head, d) : 0.0f;
  }
}

// The cosine score depends on directions alone: its gradient has no part along the vector itself. Each warp keeps its
// raw scores in shared memory (every lane its own elements), and the rows sum what has to be taken out, from the
// gradients as the product will round them.
template <int N>
__device__ void keep_scores(float* kept, const WarpTile<N>& s) {
  for_each_element<N>([&](int n, int e) {
    kept[(4 * n + e) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)] = s[n][e];
  });
}
template <class Compute, int N>
__device__ void sum_along(float (&along)[2], const float* kept, const WarpTile<N>& gradient) {
  for_each_element<N>([&](int n, int e) {
    const float g = static_cast<float>(Compute(gradient[n][e]));
    if (g != 0.0f) along[e / 2] += g * kept[(4 * n + e) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
  });
}

// Writes a warp's gradient tile to the rows of one head, from column part * 8 N on.
template <int N>
__device__ void store_gradient(const Matrix& to, const WarpTile<N>& gradient, std::int64_t offset, int valid_rows,
                               int part) {
  for_each_element<N>([&](int n, int e) {
    const int row = fragment_row(e), column = part * 8 * N + fragment_column(n, e);
    if (row < valid_rows && column < to.columns) {
      store_float(to.data, to.dtype, offset + row * to.strides[2] + column, gradient[n][e]);
    }
  });
}

template <int N>
__device__ void multiply(WarpTile<N>& tile, float factor) {
  for_each_element<N>([&](int n, int e) { tile[n][e] *= factor; });
}

// The gradient of a vector x from that of x 2^-exponent.
template <int N>
__device__ void scale_back(WarpTile<N>& gradient, const int (&exponent)[2]) {
  for_each_element<N>([&](int n, int e) { gradient[n][e] = ldexpf(gradient[n][e], -exponent[e / 2]); });
}

// Takes out of a gradient its part along the warp's own vectors: gradient -= own (along inverse_norm^2). A masked
// vector, which may hold NaN, has nothing to take out.
template <class Compute, int N>
__device__ void project_out(WarpTile<N>& gradient, const float (&along)[2], const float (&inverse_norm)[2],
                            const Compute* own, int pitch, int part) {
  float factor[2];
  for (int r = 0; r < 2; ++r) {
    const float sum = row_sum(along[r]);
    factor[r] = sum == 0.0f ? 0.0f : sum * inverse_norm[r] * inverse_norm[r];
  }
  for_each_element<N>([&](int n, int e) {
    const float x = static_cast<float>(own[fragment_row(e) * pitch + part * 8 * N + fragment_column(n, e)]);
    if (factor[e / 2] != 0.0f) gradient[n][e] -= factor[e / 2] * x;
  });
}

}  // namespace rootdk::cuda::portable
