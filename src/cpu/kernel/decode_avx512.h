#pragma once

// Products of the decode kernel in f32 on AVX-512: the sums of a block of scores go through one tree. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_widened.h"
#include "cpu/simd/block_sums_avx512.h"

namespace rootdk::cpu {
namespace {

template <class Stored, class Values = WidenOnce>
struct WidenedLanesAvx512 : WidenedLanes<Stored, Values> {
  static void store_sums(const Vec (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }
};

template <class Stored, class Values = WidenOnce>
using WidenedAvx512 = WidenedProduct<WidenedLanesAvx512<Stored, Values>>;

}  // namespace
}  // namespace rootdk::cpu
