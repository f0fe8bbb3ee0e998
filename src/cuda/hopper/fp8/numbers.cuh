#pragma once

// From q, k and v to e4m3 numbers and their scales. Every thread asks for all its vectors before it uses the first one,
// and keeps them as they came, in 16 bits: maxima are taken there, two at a time. Elements that are not finite have
// code of their own, which loads them again.

#include <type_traits>

#include "cuda/hopper/fp8/vectors.cuh"

namespace rootdk::cuda::hopper::preparation {

// The largest magnitude of each of N rows, of which every lane has a vector; not finite where an element is not.
template <class Element, int Lanes, int N>
__device__ __forceinline__ void row_magnitudes(const Vector (&raw)[N], float (&largest)[N]) {
  constexpr std::uint32_t kMagnitudes = 0x7fff7fff;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    std::uint32_t pair[2];  // of a row, in even and odd columns
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Vector& row = raw[n + i];
      pair[i] = ptx::max_pair<Element>(ptx::max_pair<Element>(row.word[0] & kMagnitudes, row.word[1] & kMagnitudes),
                                       ptx::max_pair<Element>(row.word[2] & kMagnitudes, row.word[3] & kMagnitudes));
    }
    // Both rows in one word.
    std::uint32_t both =
        ptx::max_pair<Element>(__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[0], pair[1], 0x7632));
#pragma unroll
    for (int width = Lanes / 2; width > 0; width /= 2) {
      both = ptx::max_pair<Element>(both, __shfl_xor_sync(0xffffffffu, both, width));
    }
    const float2 found = floats_of<Element>(both);
    largest[n] = found.x;
    largest[n + 1] = found.y;
  }
}
// The largest finite magnitude of one row.
template <class Element, int Lanes>
__device__ __forceinline__ float finite_magnitude(const Vector& raw) {
  float x[kVector], largest = 0.f;
  to_floats<Element>(raw, x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, isfinite(x[i]) ? fabsf(x[i]) : 0.f);
#pragma unroll
  for (int width = Lanes / 2; width > 0; width /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, width));
  }
  return largest;
}

// Sums N values of every lane over the lanes: sums[0] becomes the one of value lane / (Lanes / N). A lane gives half of
// its values away at each step, as long as it has several.
template <int Lanes, int N>
__device__ __forceinline__ void sum_over_lanes(float (&sums)[N]) {
  int count = N;
#pragma unroll
  for (int width = Lanes / 2; width > 0; width /= 2) {
    const bool upper = threadIdx.x & width;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        if (i >= count) break;
        const float given = upper ? sums[i] : sums[i + count], kept = upper ? sums[i + count] : sums[i];
        sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, width);
      }
    } else {
      sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], width);
    }
  }
}

// kQueries queries of a head: e4m3 numbers with a scale of their row, and what the mean key adds to the row's logits.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_queries(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                 int sequence, int head, int block) {
  constexpr int kRows = kThreads / Lanes, kTogether = Lanes == 8 ? 4 : 8;
  static_assert(kQueries % (kTogether * kRows) == 0 && Lanes >= kTogether);
  const int lane = static_cast<int>(threadIdx.x) % Lanes, column = lane * kVector;
  const std::int64_t columns_at = static_cast<std::int64_t>(sequence) * (p.heads / p.group) + head / p.group;
  float mean[kVector];
  load_columns(to.mean_key + columns_at * to.head_dim, column, to.head_dim, mean);
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * p.heads + head;
#pragma unroll 1
  for (int first = 0; first < kQueries; first += kTogether * kRows) {
    const int row = block * kQueries + first + static_cast<int>(threadIdx.x) / Lanes;
    const std::int64_t at = plane * p.q_rows + rows.q_begin + row;
    Vector raw[kTogether];
    load_vectors<Element>(
        p.q, {rows.batch, head, rows.q_begin, rows.q_len}, column, p.head_dim, [&](int n) { return row + n * kRows; },
        raw);
    float largest[kTogether], shift[kTogether] = {};
    row_magnitudes<Element, Lanes>(raw, largest);
    bool all = true;
#pragma unroll
    for (int n = 0; n < kTogether; ++n) all = all && isfinite(largest[n]);
    const auto store = [&](int n, bool finite) {
      float x[kVector];
      to_floats<Element>(raw[n], x);
#pragma unroll
      for (int i = 0; i < kVector; ++i) shift[n] = fmaf(x[i], mean[i], shift[n]);
      if (!finite) infinities_to_nan(x);
      const Fp8Scale scale = fp8_scale(largest[n]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] *= scale.multiplier;
      if (row + n * kRows >= rows.q_len) return;
      if (column == 0) to.q_units[at + n * kRows].x = scale.scale * p.scale_log2;
      if (column < to.head_dim) *reinterpret_cast<uint2*>(to.q + (at + n * kRows) * to.head_dim + column) = pack8(x);
    };
    if (__all_sync(0xffffffffu, all)) {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) store(n, true);
    } else {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        largest[n] = finite_magnitude<Element, Lanes>(raw[n]);
        store(n, false);
      }
    }
    sum_over_lanes<Lanes>(shift);
    constexpr int kSharing = Lanes / kTogether;
    const int owned = lane / kSharing * kRows;
    if (lane % kSharing == 0 && row + owned < rows.q_len) to.q_units[at + owned].y = shift[0] * p.scale_log2;
  }
}

// The largest over the threads of a block. `shared`: a word for each warp.
__device__ __forceinline__ float block_max(float x, float* shared) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, width));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) x = fmaxf(x, shared[warp]);
  return x;
}

// The largest |x - mean| of N keys in a thread's columns, from the extrema of the columns; not finite where an element
// is not.
template <class Element, int N>
__device__ __forceinline__ float largest_distance(const Vector (&raw)[N], const float (&mean)[kVector]) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    std::uint32_t low = raw[0].word[i], high = low;
#pragma unroll
    for (int n = 1; n < N; ++n) {
      low = ptx::min_pair<Element>(low, raw[n].word[i]);
      high = ptx::max_pair<Element>(high, raw[n].word[i]);
    }
    const float2 least = floats_of<Element>(low), most = floats_of<Element>(high);
    largest = ptx::max_or_nan(largest, ptx::max_or_nan(most.x - mean[2 * i], mean[2 * i] - least.x));
    largest = ptx::max_or_nan(largest, ptx::max_or_nan(most.y - mean[2 * i + 1], mean[2 * i + 1] - least.y));
  }
  return largest;
}

// A tile of keys of a head, less the mean key: one scale.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_keys(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                              int sequence, int head, int block, int first_block, float* shared) {
  constexpr int kVectors = vectors_of(Lanes), kRows = kThreads / Lanes;
  const int column = static_cast<int>(threadIdx.x) % Lanes * kVector;
  const int first = static_cast<int>(threadIdx.x) / Lanes;
  const int kv_heads = p.heads / p.group, keys = min(to.block_kv, rows.kv_len - block * to.block_kv);
  const int begin = rows.kv_begin + block * to.block_kv;
  const HeadRows tile{rows.batch, head, begin, keys};
  const auto key_at = [&](int n) { return first + n * kRows; };
  Vector raw[kVectors];
  load_vectors<Element>(p.k, tile, column, p.head_dim, key_at, raw);
  float mean[kVector], x[kVector];
  load_columns(to.mean_key + (static_cast<std::int64_t>(sequence) * kv_heads + head) * to.head_dim, column, to.head_dim,
               mean);
  float largest = largest_distance<Element>(raw, mean);  // keys past the last are copies of it
  const bool finite = isfinite(largest);
  const auto load_again = [&](int n) {
    Vector again[1];
    load_vectors<Element>(
        p.k, tile, column, p.head_dim, [&](int) { return key_at(n); }, again);
    to_floats<Element>(again[0], x);
  };
  if (!finite) {
    largest = 0.f;
#pragma unroll 1
    for (int n = 0; n < kVectors; ++n) {
      load_again(n);
#pragma unroll
      for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, isfinite(x[i]) ? fabsf(x[i] - mean[i]) : 0.f);
    }
  }
  const Fp8Scale scale = fp8_scale(block_max(largest, shared));
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  if (threadIdx.x == 0) to.k_scale[plane * to.key_blocks + first_block + block] = scale.scale;
  if (column >= to.head_dim) return;
  std::uint8_t* const numbers = to.k + (plane * p.kv_rows + begin + first) * to.head_dim + column;
#pragma unroll
  for (int i = 0; i < kVector; ++i) mean[i] *= -scale.multiplier;
  const auto store = [&](int n) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = fmaf(x[i], scale.multiplier, mean[i]);
    if (key_at(n) < keys) {
      *reinterpret_cast<uint2*>(numbers + static_cast<std::int64_t>(n) * kRows * to.head_dim) = pack8(x);
    }
  };
  if (finite) {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      to_floats<Element>(raw[n], x);
      store(n);
    }
  } else {
#pragma unroll 1
    for (int n = 0; n < kVectors; ++n) {
      load_again(n);
      infinities_to_nan(x);
      store(n);
    }
  }
}

// A tile of values in shared memory as words of four keys: [column][word]. The words of a column are stored in an order
// in which the threads of a warp, which hold neighbouring columns of the same keys, write to different banks.
// kNeighbours words stay together.
template <int Lanes>
inline constexpr int kNeighbours = 32 / Lanes;
template <int Lanes>
__device__ __forceinline__ int tile_word(int column, int word, int pitch) {
  return column * pitch + (word ^ (column / kVector * kNeighbours<Lanes>));
}

// Which bytes of a word of four keys belong to existing keys: key_at(i) < keys.
template <class KeyAt>
__device__ __forceinline__ std::uint32_t existing_bytes(int keys, KeyAt key_at) {
  std::uint32_t mask = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) mask |= key_at(i) < keys ? 0xffu << 8 * i : 0;
  return mask;
}

// Copies a tile of shared memory to its rows of to.v, the first at `first`. A warp copies whole columns, as many at a
// time as it has lanes for.
template <int Lanes>
__device__ __forceinline__ void store_values(const Prepared& to, std::uint8_t* first, int words, int pitch,
                                             const std::uint32_t* tile) {
  constexpr int kCopied = kNeighbours<Lanes>, kSharing = Lanes == 8 ? 8 : 32;  // lanes of a column
  using Copied = std::conditional_t<kCopied == 4, uint4, std::conditional_t<kCopied == 2, uint2, std::uint32_t>>;
  const int piece = kCopied * (static_cast<int>(threadIdx.x) % kSharing);
  const std::int64_t row_bytes = static_cast<std::int64_t>(to.key_blocks) * to.block_kv;
  for (int word = piece; word < words; word += kCopied * kSharing) {
    int c = static_cast<int>(threadIdx.x) / kSharing;
    std::uint8_t* row = first + c * row_bytes + 4 * word;
#pragma unroll 4
    for (; c < to.head_dim; c += kThreads / kSharing, row += kThreads / kSharing * row_bytes) {
      *reinterpret_cast<Copied*>(row) = *reinterpret_cast<const Copied*>(tile + tile_word<Lanes>(c, word, pitch));
    }
  }
}

// A tile of values of a head, less the mean value, transposed: [column][key], keys in the order of fp8_key_position().
// Keys past the end are zeros. A thread turns the four keys of one word (2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16) in
// eight columns. `tile`: kSharedWords words.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_values(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                int sequence, int head, int block, int first_block,
                                                std::uint32_t* tile) {
  static_assert(fp8_key_position(9) == 3 && fp8_key_position(2) == 4);
  constexpr int kTurned = vectors_of(Lanes) / 4;  // words of a thread
  const int column = static_cast<int>(threadIdx.x) % Lanes * kVector;
  const int kv_heads = p.heads / p.group, words = to.block_kv / 4, pitch = words > 32 ? 64 : 32;
  const HeadRows keys{rows.batch, head, rows.kv_begin, rows.kv_len};
  const auto word_at = [&](int i) { return static_cast<int>(threadIdx.x) / Lanes + i * (kThreads / Lanes); };
  const auto key_at = [&](int i, int n) {
    const int word = word_at(i);
    return block * to.block_kv + word / 4 * 16 + word % 4 * 2 + n / 2 * 8 + n % 2;
  };
  Vector raw[4 * kTurned];
  load_vectors<Element>(
      p.v, keys, column, p.value_dim, [&](int n) { return key_at(n / 4, n % 4); }, raw);
  const std::int64_t columns_at = static_cast<std::int64_t>(sequence) * kv_heads + head;
  float mean[kVector], multiplier[kVector];
  load_columns(to.v_columns + (2 * columns_at + 1) * to.head_dim, column, to.head_dim, mean);
  load_columns(to.v_multiplier + columns_at * to.head_dim, column, to.head_dim, multiplier);
#pragma unroll
  for (int c = 0; c < kVector; ++c) mean[c] *= -multiplier[c];
  const bool whole = (block + 1) * to.block_kv <= rows.kv_len;
  // Two columns at a time: more would take more registers than a block of three has.
  const auto turn = [&](const Vector* four, int i, bool finite) {
    const int word = word_at(i);
    if (word >= words || column >= to.head_dim) return;
    const std::uint32_t mask = whole ? ~0u : existing_bytes(rows.kv_len, [&](int n) { return key_at(i, n); });
#pragma unroll
    for (int c = 0; c < kVector; c += 2) {
      float x[2][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 pair = floats_of<Element>(four[n].word[c / 2]);
        x[0][n] = fmaf(pair.x, multiplier[c], mean[c]);
        x[1][n] = fmaf(pair.y, multiplier[c + 1], mean[c + 1]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!finite) infinities_to_nan(x[e]);
        tile[tile_word<Lanes>(column + c + e, word, pitch)] = ptx::pack_e4m3(x[e][0], x[e][1], x[e][2], x[e][3]) & mask;
      }
    }
  };
  if (all_finite<Element>(raw)) {
#pragma unroll
    for (int i = 0; i < kTurned; ++i) turn(&raw[4 * i], i, true);
  } else {
#pragma unroll 1
    for (int i = 0; i < kTurned; ++i) {
      Vector four[4];
      load_vectors<Element>(
          p.v, keys, column, p.value_dim, [&](int n) { return key_at(i, n); }, four);
      turn(four, i, false);
    }
  }
  __syncthreads();
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  std::uint8_t* const first = to.v + (plane * to.head_dim * to.key_blocks + first_block + block) * to.block_kv;
  store_values<Lanes>(to, first, words, pitch, tile);
}

}  // namespace rootdk::cuda::hopper::preparation
