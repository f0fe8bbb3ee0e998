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
  static void store_row_pair(uint32_t* to, Vec first, Vec second) { Pairs::store_row_pair(to, first, second); }
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
