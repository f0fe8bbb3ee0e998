#pragma once

// Packing bf16 tensors into bf16 operands, pairs of neighbours in depth side by side. Included once per target:
// internal linkage.

#include "cpu/kernel/gemm_bf16.h"
#include "cpu/kernel/load.h"

namespace rootdk::cpu {
namespace {

// Whether a vector of bf16 among many holds an infinity or a NaN: magnitudes have the order of integers.
class NotFinite {
 public:
  void add(__m512i x) { largest_ = _mm512_max_epu16(largest_, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff))); }
  bool any() const { return _mm512_cmpge_epu16_mask(largest_, _mm512_set1_epi16(0x7f80)) != 0; }

 private:
  __m512i largest_ = _mm512_setzero_si512();
};

// Gemm is Bf16Gemm or AmxGemm: they share panels and differ in the depth they are padded to.
template <class Gemm>
struct Bf16Packing {
  static constexpr int kPanel = Gemm::kPanel;
  static constexpr int kPairs = kWidth;  // pairs in a vector

  static void rows(const SourceRows& source, void* packed, float*) {
    const int depth = round_up(source.dim, Gemm::kDepthMultiple);
    auto* to = static_cast<uint16_t*>(packed);
    for (int i = 0; i < source.rows; ++i, to += depth) {
      const uint16_t* from = static_cast<const uint16_t*>(source.data) + i * source.row_stride;
      for (int d = 0; d < depth; d += 2 * kPairs) {
        const int room = depth - d, dims = source.dim - d;
        const __m512i row = _mm512_maskz_loadu_epi16(first_lanes(dims), from + d);
        _mm512_mask_storeu_epi16(to + d, first_lanes(room), row);
      }
    }
  }

  // Pairs of dimensions are 32-bit lanes, and keys are transposed against them as floats are.
  static void keys(const SourceRows& source, void* packed, float*) {
    const int depth = round_up(source.dim, Gemm::kDepthMultiple);
    const auto* rows = static_cast<const uint16_t*>(source.data);
    auto* to = static_cast<uint16_t*>(packed);
    for (int first = 0; first < source.rows; first += kPanel, to += static_cast<ptrdiff_t>(kPanel) * depth) {
      for (int part = 0; part < kPanel; part += kWidth) {
        const int count = larger(0, smaller(kWidth, source.rows - first - part));
        for (int d = 0; d < depth; d += 2 * kPairs) {
          const uint16_t* from = rows + (first + part) * source.row_stride + d;
          transpose_square(from, source.row_stride, count, source.dim - d, smaller(kPairs, (depth - d) / 2),
                           to + static_cast<ptrdiff_t>(d) * kPanel + 2 * part);
        }
      }
    }
  }

  static bool values(const SourceRows& source, void* packed, int64_t panel_stride) {
    NotFinite not_finite;
    const __m512i first = pair_order(0), second = pair_order(kPairs);
    for (int key = 0; key < round_up(source.rows, kPanel); key += 2) {
      uint16_t* row = static_cast<uint16_t*>(packed) + static_cast<ptrdiff_t>(key) * kPanel;
      for (int d = 0; d < source.dim; d += 2 * kPairs) {
        const __m512i even = load_row(source, key, d), odd = load_row(source, key + 1, d);
        not_finite.add(even);
        not_finite.add(odd);
        uint16_t* to = row + d / kPanel * panel_stride + d % kPanel * 2;
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, first, odd));
        if (d + kPairs < source.dim) _mm512_storeu_si512(to + 2 * kPairs, _mm512_permutex2var_epi16(even, second, odd));
      }
    }
    return not_finite.any();
  }

 protected:
  static __mmask32 first_lanes(int n) { return n >= 32 ? 0xffffffffu : (n > 0 ? (1u << n) - 1u : 0u); }

  // Elements d, d + 1, ... of two rows side by side: the second row counts from 32.
  static __m512i pair_order(int d) {
    uint16_t order[2 * kPairs];
    for (int i = 0; i < kPairs; ++i) {
      order[2 * i] = static_cast<uint16_t>(d + i);
      order[2 * i + 1] = static_cast<uint16_t>(2 * kPairs + d + i);
    }
    return _mm512_loadu_si512(order);
  }

  static __m512i load_row(const SourceRows& source, int key, int d) {
    if (key >= source.rows) return _mm512_setzero_si512();
    const uint16_t* from = static_cast<const uint16_t*>(source.data) + key * source.row_stride + d;
    return _mm512_maskz_loadu_epi16(first_lanes(source.dim - d), from);
  }

  // dims: the dimensions that are left in the tensor; pairs: those that are left in the panel.
  static void transpose_square(const uint16_t* from, int64_t row_stride, int keys, int dims, int pairs, uint16_t* to) {
    Vec square[kWidth];
    const __mmask32 mask = first_lanes(dims);
    for (int i = 0; i < kWidth; ++i) {
      square[i] = i < keys ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from + i * row_stride)) : Simd::zero();
    }
    Simd::transpose(square);
    for (int p = 0; p < pairs; ++p) Simd::store(reinterpret_cast<float*>(to + p * 2 * kPanel), square[p]);
  }
};

}  // namespace
}  // namespace rootdk::cpu
