#pragma once

// The backward pass on AMX. A tile takes neither operand down its columns, so the sums over queries are transposed:
//     dv^T [dim, keys] += g_out^T p;  dk^T [dim, keys] += q^T ds
// with p and ds as the pairs of rows that a right operand is made of, and q and g_out transposed once a block.
// Included once per target: internal linkage.

#include "cpu/kernel/backward.h"
#include "cpu/kernel/backward_bf16.h"
#include "cpu/kernel/gemm_amx.h"

namespace rootdk::cpu {
namespace {

struct BackwardAmxGemm : BackwardPairs<AmxGemm> {
  static Vec exponential(Vec x) { return exp2_of_score(x); }

  // The factors of the backward pass are ones.
  static void multiply_add(int rows, int, Left<uint32_t> a, const uint16_t* panel, int depth, float* c, ptrdiff_t ldc,
                           const float*) {
    take(rows, a, panel, depth, c, ldc, false);
  }
};

struct BackwardAmxPacking : BackwardBf16Packing<AmxGemm> {
  // [dim padded, kBackwardRows]; rows are padded with zeros to the depth of a product.
  static bool query_rows(const SourceRows& source, void* packed) {
    Pairs::NotFinite not_finite;
    const Pairs::InOrder order;
    for (int d = 0; d < source.dim; d += 2 * kPairs) {
      for (int row = 0; row < source.rows; row += 2 * kPairs) {
        Vec squares[2][kWidth];  // [half of the dimensions, pair of rows]
        for (int pair = 0; pair < kPairs; ++pair) {
          const Pairs::Vector even = load_row(source, row + 2 * pair, d);
          const Pairs::Vector odd = load_row(source, row + 2 * pair + 1, d);
          not_finite.add(even);
          not_finite.add(odd);
          squares[0][pair] = Pairs::as_floats(order.first(even, odd));
          squares[1][pair] = Pairs::as_floats(order.second(even, odd));
        }
        for (int half = 0; half < 2; ++half) {
          Simd::transpose(squares[half]);
          uint16_t* to = static_cast<uint16_t*>(packed) + (d + half * kPairs) * kBackwardRows + row;
          for (int i = 0; i < kPairs; ++i) {
            Simd::store(reinterpret_cast<float*>(to + i * kBackwardRows), squares[half][i]);
          }
        }
      }
    }
    return not_finite.any();
  }
};

class AmxBackward : private BackwardKernel<BackwardAmxGemm> {
  using Base = BackwardKernel<BackwardAmxGemm>;

 public:
  static constexpr bool kTransposedSums = true;
  using Base::Base;
  using Base::key_block;

  void run() {
    Base::run([&](const Transposed& product) { add_transposed(product); });
  }

 private:
  // to [dim, keys] += right left, right [dim, rows] being a block of queries, left [rows, keys] weights or ds. A panel
  // of keys stays in L1 for all dimensions.
  void add_transposed(const Transposed& x) {
    for (int key = 0; key < keys_.keys; key += kPanel) {
      const Range rows = rows_that_see(key, kPanel);
      if (rows.begin >= rows.end) continue;
      const uint32_t* left = x.left + static_cast<ptrdiff_t>(rows.begin / AmxGemm::kUnit) * stride_ + key;
      if (x.not_finite) {
        add_carefully(x, left, key, rows);
        continue;
      }
      for (int d = 0; d < x.dim; d += AmxGemm::kRows) {
        TileProducts products;
        products.add({.left = x.right + static_cast<ptrdiff_t>(d) * kBackwardRows + rows.begin,
                      .left_stride = kBackwardRows,
                      .right = reinterpret_cast<const uint16_t*>(left),
                      .right_stride = 0,
                      .right_row = static_cast<ptrdiff_t>(AmxGemm::kUnit) * stride_,
                      .depth = round_up(rows.end - rows.begin, AmxGemm::kDepthMultiple),
                      .panels = 1,
                      .c = x.to + static_cast<ptrdiff_t>(d) * block_ + key,
                      .ldc = block_,
                      .two_rows = x.dim - d > AmxGemm::kTile,
                      .from_zero = false});
        products.finish();
      }
    }
  }

  // Where a query or a gradient is infinite or NaN: a weight of zero, which a mask leaves, must not meet it.
  void add_carefully(const Transposed& x, const uint32_t* left, int key, Range rows) {
    for (int i = 0; i < smaller(kPanel, keys_.keys - key); ++i) {
      for (int r = 0; r < rows.end - rows.begin; ++r) {
        const float weight = unit_part(left[r / AmxGemm::kUnit * stride_ + i], r % AmxGemm::kUnit);
        if (weight == 0.0f) continue;
        for (int d = 0; d < x.dim; ++d) {
          x.to[static_cast<ptrdiff_t>(d) * block_ + key + i] +=
              weight * AmxGemm::widen(x.right[static_cast<ptrdiff_t>(d) * kBackwardRows + rows.begin + r]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
