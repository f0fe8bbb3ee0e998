#pragma once

// What every kernel header starts from. A target's source file includes its simd/*.h first, which defines Simd.

#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {
namespace {

using Vec = Simd::Vec;
constexpr int kWidth = Simd::kWidth;

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }
inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a < b ? b : a; }

}  // namespace
}  // namespace rootdk::cpu
