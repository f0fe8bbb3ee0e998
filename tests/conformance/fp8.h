#pragma once

// The conformance grid of attention in e4m3 (rootdk/fp8.h): every case with the dot score, against the reference.
//
//     TEST(Sm90, Fp8) { expect_fp8_conformance({.name = "sm90", .memory = &memory}, DType::bf16); }

#include "conformance/conformance.h"

namespace rootdk::test {

// How far a target may be from the reference. Of the output: weights of 2^-4 of v's largest value for each time that
// they, or what they are computed from, may be rounded to the other neighbour. Of the statistics: relative to their
// size, at least 1.
struct Fp8Tolerance {
  double rounded_weights = 2;  // 1: a target does not round weights; 2: beside the largest logit so far
  double statistics = 2e-4;
  Statistics asked = Statistics::all;
};

// Forward with statistics. CPU targets run on 1 and on 3 threads and must give the same bits. Cases that the target
// refuses are listed with its reason.
ConformanceReport expect_fp8_conformance(const Target& target, DType dtype, const Fp8Tolerance& tolerance = {});

}  // namespace rootdk::test
