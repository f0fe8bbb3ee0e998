#pragma once

// Means and scales by column: sums of k, and sums, least and largest of v, first over chunks of keys, then over all.
// Sums have a fixed order. Values that are not finite do not count.

#include "cuda/hopper/fp8/vectors.cuh"

namespace rootdk::cuda::hopper::preparation {

// What is known of eight columns of k or v over some keys. Extrema stay in 16 bits, where they are exact.
template <class Element, bool Values>
struct ColumnSums {
  float sum[kVector] = {};
  float least[kVector], largest[kVector];  // of v

  __device__ __forceinline__ bool finite() const {
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < kVector; ++i) total += sum[i] * 0.f;
    return total == 0.f;
  }
};

// What a thread finds in its keys of a chunk: every `lanes`th key from `lane` on, of which there is one.
template <class Element, bool Values>
__device__ __forceinline__ ColumnSums<Element, Values> sums_of_keys(const DeviceTensor& t, const HeadRows& keys,
                                                                    int lane, int lanes, int column, int columns) {
  constexpr int kTogether = 8;  // keys that a thread asks for before it uses the first
  ColumnSums<Element, Values> found;
  std::uint32_t least[kWords], largest[kWords];
#pragma unroll 1
  for (int key = lane; key < keys.count; key += kTogether * lanes) {
    Vector raw[kTogether];
    load_vectors<Element>(
        t, keys, column, columns, [&](int n) { return key + n * lanes; }, raw);
    if constexpr (Values) {  // copies of the last key change no extremum
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (key == lane) least[i] = largest[i] = raw[0].word[i];
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          least[i] = ptx::min_pair<Element>(least[i], raw[n].word[i]);
          largest[i] = ptx::max_pair<Element>(largest[i], raw[n].word[i]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const bool exists = key + n * lanes < keys.count;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float2 x = floats_of<Element>(exists ? raw[n].word[i] : 0);
        found.sum[2 * i] += x.x;
        found.sum[2 * i + 1] += x.y;
      }
    }
  }
  if constexpr (Values) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const float2 low = floats_of<Element>(least[i]), high = floats_of<Element>(largest[i]);
      found.least[2 * i] = low.x;
      found.least[2 * i + 1] = low.y;
      found.largest[2 * i] = high.x;
      found.largest[2 * i + 1] = high.y;
    }
  }
  return found;
}

// The same where some elements are not finite.
template <class Element, bool Values>
__device__ __forceinline__ ColumnSums<Element, Values> sums_of_finite_keys(const DeviceTensor& t, const HeadRows& keys,
                                                                           int lane, int lanes, int column,
                                                                           int columns) {
  ColumnSums<Element, Values> found;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    found.least[i] = INFINITY;
    found.largest[i] = -INFINITY;
  }
#pragma unroll 1
  for (int key = lane; key < keys.count; key += lanes) {
    Vector raw[1];
    float x[kVector];
    load_vectors<Element>(
        t, keys, column, columns, [&](int) { return key; }, raw);
    to_floats<Element>(raw[0], x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (!isfinite(x[i])) continue;
      found.sum[i] += x[i];
      found.least[i] = fminf(found.least[i], x[i]);
      found.largest[i] = fmaxf(found.largest[i], x[i]);
    }
  }
  return found;
}

// Where the columns over a chunk of keys are: x the sum of k; y, z, w sum, least and largest of v. Those of packed
// sequences begin as their blocks of keys do.
__device__ __forceinline__ std::int64_t chunk_at(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                 int sequence, int head, int chunk) {
  const int first = p.q_starts.data ? rows.kv_begin / kChunk + sequence : 0;
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * (p.heads / p.group) + head;
  return (plane * to.chunks + first + chunk) * to.head_dim;
}

// Columns of k or v over kChunk keys. `shared`: kSharedWords words.
template <class Element, bool Values>
__device__ __forceinline__ void reduce_chunk(const ForwardParams& p, const Prepared& to, const Rows& rows, int sequence,
                                             int head, int chunk, float* shared) {
  constexpr int kSums = Values ? 3 : 1;
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = to.head_dim / kVector, lanes = kThreads / vectors;  // rows that are loaded at the same time
  const int lane = thread / vectors, column = thread % vectors * kVector;
  if (lane < lanes) {
    const DeviceTensor& tensor = Values ? p.v : p.k;
    const int columns = Values ? p.value_dim : p.head_dim;
    const HeadRows keys{rows.batch, head, rows.kv_begin + chunk * kChunk, min(kChunk, rows.kv_len - chunk * kChunk)};
    ColumnSums<Element, Values> found;
    if (lane < keys.count) found = sums_of_keys<Element, Values>(tensor, keys, lane, lanes, column, columns);
    if (lane >= keys.count || !found.finite()) {
      found = sums_of_finite_keys<Element, Values>(tensor, keys, lane, lanes, column, columns);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float* const at = shared + (lane * to.head_dim + column + i) * kSums;
      at[0] = found.sum[i];
      if constexpr (Values) {
        at[1] = found.least[i];
        at[2] = found.largest[i];
      }
    }
  }
  __syncthreads();
  if (thread >= to.head_dim) return;
  float sum = 0.f, least = INFINITY, largest = -INFINITY;
  for (int i = 0; i < lanes; ++i) {
    const float* const at = shared + (i * to.head_dim + thread) * kSums;
    sum += at[0];
    if constexpr (Values) {
      least = fminf(least, at[1]);
      largest = fmaxf(largest, at[2]);
    }
  }
  float4& partial = to.partials[chunk_at(p, to, rows, sequence, head, chunk) + thread];
  if constexpr (Values) {
    partial.y = sum;
    partial.z = least;
    partial.w = largest;
  } else {
    partial.x = sum;
  }
}

__device__ __forceinline__ float4 join(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, fminf(a.z, b.z), fmaxf(a.w, b.w));
}

// From the sums of one column over all keys to its means and the scale of v.
__device__ __forceinline__ void finish_column(const ForwardParams& p, const Prepared& to, std::int64_t plane,
                                              int column, float keys, const float4& total) {
  // A mean below the steps of e4m3 stays: rounding would not see that it was taken off, and it would be added twice.
  const float mean_of_all = total.y / keys, largest_of_all = fmaxf(fmaxf(total.w, -total.z), 0.f);
  const bool takes_mean = isfinite(mean_of_all) && fabsf(mean_of_all) > largest_of_all / 32;
  const float mean_value = takes_mean ? mean_of_all : 0.f;
  const float largest = fmaxf(fmaxf(total.w - mean_value, mean_value - total.z), 0.f);  // -inf: no finite value
  const std::int64_t at = plane * to.head_dim + column;
  // A sink and a softcap see more than differences of scores. A sum that overflows takes nothing off.
  const bool key_stays = p.sinks.data || p.terms.softcap.cap_log2 > 0 || !isfinite(total.x);
  to.mean_key[at] = key_stays ? 0.f : total.x / keys;
  const Fp8Scale scale = fp8_scale(largest);
  to.v_multiplier[at] = scale.multiplier;
  float* const v_columns = to.v_columns + plane * 2 * to.head_dim + column;
  v_columns[0] = scale.scale;
  v_columns[to.head_dim] = mean_value;
}

// The mean key, the mean value and the scales of v of a plane. Several threads share a column: each adds the chunks of
// its part in order, the first part's threads add the parts. `shared`: kThreads float4.
__device__ __forceinline__ void finish_columns(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                               int sequence, int head, float4* shared) {
  const int chunks = (rows.kv_len + kChunk - 1) / kChunk, parts = kThreads / to.head_dim;
  const int thread = static_cast<int>(threadIdx.x), column = thread % to.head_dim, part = thread / to.head_dim;
  float4 total = make_float4(0.f, 0.f, INFINITY, -INFINITY);
  if (part < parts) {
    const float4* const from = to.partials + chunk_at(p, to, rows, sequence, head, 0) + column;
#pragma unroll 8
    for (int chunk = part; chunk < chunks; chunk += parts) {
      total = join(total, from[static_cast<std::int64_t>(chunk) * to.head_dim]);
    }
    shared[thread] = total;
  }
  __syncthreads();
  if (thread >= to.head_dim) return;
  for (int i = 1; i < parts; ++i) total = join(total, shared[i * to.head_dim + thread]);
  const std::int64_t plane = static_cast<std::int64_t>(sequence) * (p.heads / p.group) + head;
  finish_column(p, to, plane, thread, static_cast<float>(max(rows.kv_len, 1)), total);
}

}  // namespace rootdk::cuda::hopper::preparation
