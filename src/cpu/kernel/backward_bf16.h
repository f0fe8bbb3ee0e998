#pragma once

// What the backward pass asks of a bf16 product beyond the forward's. Included once per target: internal linkage.

#include "cpu/backward_table.h"
#include "cpu/kernel/math.h"
#include "cpu/kernel/pack_bf16.h"

namespace rootdk::cpu {
namespace {

// Gemm is Bf16Gemm or AmxGemm.
template <class Gemm>
struct BackwardPairs : Gemm {
  // Two rows of a matrix as a row of pairs: to[t] = {first[t], second[t]}.
  static void store_row_pair(uint32_t* to, Vec first, Vec second) {
    alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                             21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                             11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), rounded));
  }
};

struct BackwardBf16Gemm : BackwardPairs<Bf16Gemm> {
  static Vec exponential(Vec x) { return exp2(x); }
};

// bf16 products run no score that normalises: there is nothing to do first.
template <class Gemm>
struct BackwardBf16Packing : Bf16Packing<Gemm> {
  static SourceRows prepared(const SourceRows& source, float*) { return source; }
  static bool query_rows(const SourceRows& source, void* packed) {
    return Bf16Packing<Gemm>::values(source, packed, round_up(kBackwardRows, Gemm::kPanel) * Gemm::kPanel);
  }
};

}  // namespace
}  // namespace rootdk::cpu
