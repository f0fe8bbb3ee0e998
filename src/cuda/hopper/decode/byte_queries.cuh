#pragma once

// The queries of a tile as operands in f16.

#include <type_traits>

#include "cuda/hopper/decode/byte_tiles.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/unpack.cuh"

namespace rootdk::cuda::hopper {

// The range of bf16 is wider than that of f16. So each row is divided by a power of two near its largest number, which
// is exact, and the scores are multiplied by it again, and by the scale: units().
template <class C>
class ByteQueries {
 public:
  using Element = typename C::Element;

  // Called by all consumers together. `scale` is a factor of all scores.
  __device__ __forceinline__ ByteQueries(ByteDecodeStorage<C>& shared, const ForwardParams& p, float scale)
      : shared_(shared) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int group = 0; group < C::kRowGroups; ++group) {
      const int row = min(8 * group + lane / 4, shared.part.rows - 1);
      const Element* from = query_row<Element>(p, shared.part, row_in(shared.part, p, row));
      const float unit = std::is_same_v<Element, __half> ? 1.f : row_unit(from, p.head_dim);
      // This thread's scores belong to the rows 2 (lane % 4) and 2 (lane % 4) + 1.
      units_[group][0] = scale * __shfl_sync(0xffffffffu, unit, 8 * (lane & 3));
      units_[group][1] = scale * __shfl_sync(0xffffffffu, unit, 8 * (lane & 3) + 4);
#pragma unroll
      for (int step = 0; step < C::kScoreSteps; ++step) {
        const uint2 pairs = load(from, step, p.head_dim, 1.f / unit);
        if constexpr (C::kQueriesInRegisters) {
          operands_[step] = pairs;
        } else {
          if (threadIdx.x < 32) shared.q[group * C::kScoreSteps + step][lane] = pairs;
        }
      }
    }
    if (!C::kQueriesInRegisters) ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ uint2 operand(int group, int step) const {
    if constexpr (C::kQueriesInRegisters) return operands_[step];
    return shared_.q[group * C::kScoreSteps + step][threadIdx.x & 31];
  }
  // Of this thread's two rows.
  __device__ __forceinline__ const float (&units(int group) const)[2] { return units_[group]; }

 private:
  // Columns past the end are zeros.
  static __device__ __forceinline__ uint2 load(const Element* row, int step, int head_dim) {
    const int column = query_column<C>(step);
    return column < head_dim ? *reinterpret_cast<const uint2*>(row + column) : make_uint2(0, 0);
  }
  static __device__ __forceinline__ uint2 load(const Element* row, int step, int head_dim, float factor) {
    const uint2 pairs = load(row, step, head_dim);
    if constexpr (std::is_same_v<Element, __half>) return pairs;
    const float2 first = ptx::unpack<Element>(pairs.x), second = ptx::unpack<Element>(pairs.y);
    return make_uint2(ptx::pack<__half>(first.x * factor, first.y * factor),
                      ptx::pack<__half>(second.x * factor, second.y * factor));
  }

  // A power of two near the largest finite number of the row.
  static __device__ __forceinline__ float row_unit(const Element* row, int head_dim) {
    const auto magnitude = [](float x) { return isfinite(x) ? fabsf(x) : 0.f; };
    float largest = 0.f;
#pragma unroll
    for (int step = 0; step < C::kScoreSteps; ++step) {
      const uint2 pairs = load(row, step, head_dim);
      const float2 first = ptx::unpack<Element>(pairs.x), second = ptx::unpack<Element>(pairs.y);
      largest = fmaxf(largest, fmaxf(magnitude(first.x), magnitude(first.y)));
      largest = fmaxf(largest, fmaxf(magnitude(second.x), magnitude(second.y)));
    }
    largest = quad_max(largest);
    constexpr float kSmallest = 0x1p-100f, kLargest = 0x1p112f;  // whose inverses are normal numbers
    const float power = __uint_as_float(__float_as_uint(largest) & 0x7f800000u);
    return fminf(fmaxf(power, kSmallest), kLargest);
  }

  ByteDecodeStorage<C>& shared_;
  float units_[C::kRowGroups][2];
  uint2 operands_[C::kQueriesInRegisters ? C::kScoreSteps : 1];
};

}  // namespace rootdk::cuda::hopper
