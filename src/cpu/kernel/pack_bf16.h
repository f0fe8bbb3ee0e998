#pragma once

// Packing bf16 tensors into bf16 operands, pairs of neighbours in depth side by side. Included once per target:
// internal linkage.

#include "cpu/kernel/gemm_bf16.h"
#include "cpu/kernel/load.h"

namespace rootdk::cpu {
namespace {

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
        Pairs::store_first(to + d, Pairs::load_first(from + d, dims), room);
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
    Pairs::NotFinite not_finite;
    const Pairs::InOrder order;
    for (int key = 0; key < round_up(source.rows, kPanel); key += 2) {
      uint16_t* row = static_cast<uint16_t*>(packed) + static_cast<ptrdiff_t>(key) * kPanel;
      for (int d = 0; d < source.dim; d += 2 * kPairs) {
        const Pairs::Vector even = load_row(source, key, d), odd = load_row(source, key + 1, d);
        not_finite.add(even);
        not_finite.add(odd);
        uint16_t* to = row + d / kPanel * panel_stride + d % kPanel * 2;
        Pairs::store(to, order.first(even, odd));
        if (d + kPairs < source.dim) Pairs::store(to + 2 * kPairs, order.second(even, odd));
      }
    }
    return not_finite.any();
  }

 protected:
  static Pairs::Vector load_row(const SourceRows& source, int key, int d) {
    if (key >= source.rows) return Pairs::Vector{};
    const uint16_t* from = static_cast<const uint16_t*>(source.data) + key * source.row_stride + d;
    return Pairs::load_first(from, source.dim - d);
  }

  // dims: the dimensions that are left in the tensor; pairs: those that are left in the panel.
  static void transpose_square(const uint16_t* from, int64_t row_stride, int keys, int dims, int pairs, uint16_t* to) {
    Vec square[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      square[i] = i < keys ? Pairs::as_floats(Pairs::load_first(from + i * row_stride, dims)) : Simd::zero();
    }
    Simd::transpose(square);
    for (int p = 0; p < pairs; ++p) Simd::store(reinterpret_cast<float*>(to + p * 2 * kPanel), square[p]);
  }
};

}  // namespace
}  // namespace rootdk::cpu
