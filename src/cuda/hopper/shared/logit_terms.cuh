#pragma once

// From scores to logits (softcap, ALiBi, relative table, bias, mask), and dropout of the weights. Each term is one pass
// over the tile, behind a branch that is uniform across the block. Logits are in units of log2.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/tile_config.h"
#include "cuda/ptx/arithmetic.cuh"
#include "rootdk/dropout.h"

namespace rootdk::cuda::hopper {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Which rows and columns of the scores a thread holds: rows row[0] and row[1] of the sequence, columns from `column`
// on.
struct TileCoordinates {
  int sequence, head[2];
  int row[2];
  int position[2];  // key positions of the rows
  int column;       // of s[0]
  int q_len, kv_len;
};

// Who calls: all threads of a warp together, or each on its own, where the bits of a score depend on that score alone.
enum class Threads { warp, single };

// Calls body(x, r, offset): offset is the column of x counted from TileCoordinates::column.
template <int N, class Body>
__device__ __forceinline__ void for_each_score(float (&s)[N], Body body) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) body(s[4 * i + 2 * r + e], r, 8 * i + e);
    }
  }
}

// The offset of the last column that for_each_score() visits.
template <int N>
constexpr int last_offset(const float (&)[N]) {
  return 2 * N - 7;
}

// How many of the columns that for_each_score() visits in a row lie below offset x. The columns come in pairs, eight
// columns apart.
__device__ __forceinline__ int columns_below(int x) {
  x = max(x, 0);
  return 2 * (x >> 3) + min(x & 7, 2);
}

// Scores of keys outside [begin, end) become -inf. The visible columns of a row are the bits of one word: comparing
// each column with both ends would cost two more instructions a score, on the unit that also computes the maxima.
template <int N>
__device__ __forceinline__ void mask_outside(float (&s)[N], const int (&begin)[2], const int (&end)[2], int column) {
  constexpr int kWords = (N / 2 + 31) / 32;  // of 32 columns, that is 128 keys
  std::uint32_t seen[2][kWords];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int first = columns_below(begin[r] - column - 128 * word);
      seen[r][word] = ptx::bit_mask(first, max(0, columns_below(end[r] - column - 128 * word) - first));
    }
  }
  for_each_score(s, [&](float& x, int r, int offset) {
    const int index = offset / 8 * 2 + offset % 8;
    x = ptx::unless_masked(x, seen[r][index / 32], 1u << (index % 32));
  });
}
template <int N>
__device__ __forceinline__ void mask_from(float (&s)[N], const int (&end)[2], int column) {
  const int begin[2] = {column, column};
  mask_outside(s, begin, end, column);
}

// tanh with an absolute error near 1e-7, for any argument.
__device__ __forceinline__ float tanh_by_exp(float u) {
  const float t = ptx::exp2_approximate(-2.f * kLog2e * fabsf(u));
  return copysignf(__fdividef(1.f - t, 1.f + t), u);
}

// cap tanh(scale x / cap): for |x| <= cap.small it is x times small_softcap_slope(x); for any x it is any_softcap(x).
__device__ __forceinline__ float small_softcap_slope(float x, const Softcap& cap) {
  const float square = x * x;
  return fmaf(fmaf(cap.odd[2], square, cap.odd[1]), square, cap.odd[0]);
}
__device__ __forceinline__ float any_softcap(float x, const Softcap& cap) {
  return cap.cap_log2 * tanh_by_exp(x * cap.inverse);
}

// Caps every score. Caps are usually wide, so that nearly always all scores of a tile are small. Then an odd polynomial
// replaces tanh, and the special-function unit, which the exponentials keep busy, has no extra work.
template <Threads Which, class Scores>
__device__ __forceinline__ void softcap(Scores& s, const Softcap& cap) {
  float largest[4] = {};
  for_each_score(s, [&](float& x, int r, int offset) {
    float& chain = largest[2 * r + offset % 2];
    chain = fmaxf(chain, fabsf(x));
  });
  const float larger = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  if (Which == Threads::warp && __all_sync(0xffffffffu, larger <= cap.small)) {
    for_each_score(s, [&](float& x, int, int) { x *= small_softcap_slope(x, cap); });
  } else {
    for_each_score(s, [&](float& x, int, int) { x = any_softcap(x, cap); });
  }
}

// The largest magnitude of the scores, given the largest score of each row. Compared as unsigned integers, a negative
// float is larger than any positive one, and of two negative floats the one of larger magnitude is larger.
template <int N>
__device__ __forceinline__ float largest_magnitude(const float (&s)[N], const float (&maximum)[2]) {
  unsigned lowest[2] = {};
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    lowest[0] = __vimax3_u32(lowest[0], __float_as_uint(s[i]), __float_as_uint(s[i + 1]));
    lowest[1] = __vimax3_u32(lowest[1], __float_as_uint(s[i + 2]), __float_as_uint(s[i + 3]));
  }
  const float low = __uint_as_float(max(lowest[0], lowest[1]));
  return fmaxf(fabsf(low), fmaxf(maximum[0], maximum[1]));
}

// ALiBi where no key lies to the right of its query: the distance needs no absolute value. The distance is the same
// eight rows down and eight columns to the right, so the two rows of a thread share their terms.
template <int N>
__device__ __forceinline__ void add_causal_alibi(float (&s)[N], const TileCoordinates& at,
                                                 const DeviceVector<float>& slopes, float scale_log2) {
  const float slope = kLog2e * slopes.data[at.head[0] * slopes.stride];
  const float first = slope * static_cast<float>(at.column - at.position[0]);
  float left[2];  // the terms eight columns to the left
#pragma unroll
  for (int e = 0; e < 2; ++e) left[e] = fmaf(slope, static_cast<float>(e - 8), first);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float here = fmaf(slope, static_cast<float>(8 * i + e), first);
      s[4 * i + e] = fmaf(s[4 * i + e], scale_log2, here);
      s[4 * i + 2 + e] = fmaf(s[4 * i + 2 + e], scale_log2, left[e]);
      left[e] = here;
    }
  }
}

template <class Scores>
__device__ __forceinline__ void add_alibi(Scores& s, const TileCoordinates& at, const DeviceVector<float>& slopes) {
  float slope[2], distance[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    slope[r] = -kLog2e * slopes.data[at.head[r] * slopes.stride];
    distance[r] = static_cast<float>(at.position[r] - at.column);
  }
  for_each_score(
      s, [&](float& x, int r, int offset) { x = fmaf(slope[r], fabsf(distance[r] - static_cast<float>(offset)), x); });
}

template <class Scores>
__device__ __forceinline__ void add_relative_table(Scores& s, const TileCoordinates& at, const LogitTerms& terms) {
  const float* table[2];
  int entry[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    table[r] = static_cast<const float*>(terms.relative_table.data) + at.head[r] * terms.relative_table.head_stride;
    entry[r] = at.position[r] - at.column + terms.relative_zero;
  }
  const auto value = [&](int r, int offset) {
    const int clamped = min(max(entry[r] - offset, 0), terms.relative_entries - 1);
    return kLog2e * __ldg(table[r] + clamped * terms.relative_table.column_stride);
  };
  // Far from the diagonal every distance of the tile has the same entry, the first or the last.
  const int last = last_offset(s);
  const auto one_entry = [&](int r) { return entry[r] <= 0 || entry[r] - last >= terms.relative_entries - 1; };
  if (one_entry(0) && one_entry(1)) {
    const float all[2] = {value(0, 0), value(1, 0)};
    for_each_score(s, [&](float& x, int r, int) { x += all[r]; });
  } else {
    for_each_score(s, [&](float& x, int r, int offset) { x += value(r, offset); });
  }
}

// The start of a row of a dense tensor [batch, heads, q_len, kv_len], at the thread's first column.
template <class T>
__device__ __forceinline__ const T* dense_row(const DeviceTensor& tensor, const TileCoordinates& at, int r) {
  const int row = min(at.row[r], at.q_len - 1);
  return static_cast<const T*>(tensor.data) + at.sequence * tensor.batch_stride + at.head[r] * tensor.head_stride +
         row * tensor.row_stride + at.column * tensor.column_stride;
}

template <class T, class Scores>
__device__ __forceinline__ void add_bias(Scores& s, const TileCoordinates& at, const DeviceTensor& bias) {
  const T* row[2] = {dense_row<T>(bias, at, 0), dense_row<T>(bias, at, 1)};
  const int columns = at.kv_len - at.column;
  for_each_score(s, [&](float& x, int r, int offset) {
    if (offset < columns) x = fmaf(kLog2e, static_cast<float>(row[r][offset * bias.column_stride]), x);
  });
}

template <class Scores>
__device__ __forceinline__ void apply_mask(Scores& s, const TileCoordinates& at, const DeviceTensor& mask) {
  const std::uint8_t* row[2] = {dense_row<std::uint8_t>(mask, at, 0), dense_row<std::uint8_t>(mask, at, 1)};
  const int columns = at.kv_len - at.column;
  for_each_score(s, [&](float& x, int r, int offset) {
    if (offset < columns && row[r][offset * mask.column_stride] == 0) x = -INFINITY;
  });
}

// Scores to logits. Terms known at compile time need no branch at run time.
template <class Element, Terms Known, Threads Which = Threads::warp, class Scores>
__device__ __forceinline__ void scores_to_logits(Scores& s, const TileCoordinates& at, const ForwardParams& p) {
  const LogitTerms& terms = p.terms;
  if constexpr (Known == Terms::softcap) {
    softcap<Which>(s, terms.softcap);
  } else if constexpr (Known == Terms::causal_alibi) {
    add_causal_alibi(s, at, terms.alibi_slopes, p.scale_log2);
  } else {
    if (terms.softcap.cap_log2 > 0.f) {
      softcap<Which>(s, terms.softcap);
    } else {
      for_each_score(s, [&](float& x, int, int) { x *= p.scale_log2; });
    }
    if (terms.alibi_slopes.data) add_alibi(s, at, terms.alibi_slopes);
    if (terms.relative_table.data) add_relative_table(s, at, terms);
    if (terms.bias_type == BiasType::f32) add_bias<float>(s, at, terms.bias);
    if (terms.bias_type == BiasType::element) add_bias<Element>(s, at, terms.bias);
    if (terms.mask.data) apply_mask(s, at, terms.mask);
  }
}

// Transposes a 4 x 4 matrix spread over the four threads of a quad: v[c] of thread t becomes v[t] of thread c.
__device__ __forceinline__ void quad_transpose(std::uint32_t (&v)[4], int quad) {
  const bool odd = quad & 1, upper = quad & 2;
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? v[c] : v[c + 1], 1);
    (odd ? v[c] : v[c + 1]) = other;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? v[c] : v[c + 2], 2);
    (upper ? v[c] : v[c + 2]) = other;
  }
}

// Dropped weights become 0; the output's final factor includes the scale of kept ones. One Philox block serves eight
// keys of a row. Thread t of a quad computes the block of column group 4 g + t. Then the quad exchanges words, because
// each thread needs word t, the bits of its two columns, of every group.
template <int N>
__device__ __forceinline__ void drop(float (&weights)[N], const TileCoordinates& at, const LogitTerms& terms) {
  constexpr int kGroups = N / 4;  // of eight columns
  const int quad = threadIdx.x & 3;
  const auto first_block = static_cast<std::uint32_t>((at.column - 2 * quad) / 8);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int g = 0; g < kGroups; g += 4) {
      const PhiloxWords words =
          philox4x32_10({first_block + g + quad, static_cast<std::uint32_t>(at.row[r]),
                         static_cast<std::uint32_t>(at.head[r]), static_cast<std::uint32_t>(at.sequence)},
                        terms.dropout_seed);
      std::uint32_t words16[4] = {words[0], words[1], words[2], words[3]};
      quad_transpose(words16, quad);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (g + c >= kGroups) break;
        float& even = weights[4 * (g + c) + 2 * r];
        float& odd = weights[4 * (g + c) + 2 * r + 1];
        if ((words16[c] & 0xffffu) < terms.dropout_threshold) even = 0.f;
        if ((words16[c] >> 16) < terms.dropout_threshold) odd = 0.f;
      }
    }
  }
}

}  // namespace rootdk::cuda::hopper
