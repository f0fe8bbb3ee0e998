#pragma once

// Where a tile of the backward pass keeps its weights and score gradients. Included once per target: internal linkage.

#include "cpu/backward_table.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// Working memory of one thread, at 64-byte boundaries. For f32 products weights and gradients are the f32 rows
// themselves; for bf16 the rows of one group are f32, and the tile holds pairs of rows, [rows / 2, stride, 2].
template <class Gemm>
struct BackwardScratch {
  using Unit = typename Gemm::Unit;
  static constexpr bool kPairs = Gemm::kUnit == 2;

  Unit* weights;                      // [kBackwardRows / kUnit, stride]
  Unit* gradients;                    // [kBackwardRows / kUnit, stride]
  float* scores;                      // [rows of a group, stride]; bf16 only
  float* dp;                          // [rows of a group, stride]; bf16 only
  typename Gemm::Element* left_rows;  // [rows of a group, stride]: ds as a left operand; bf16 only
  float* slopes;                      // [stride]
  uint16_t* numbers;                  // [stride in whole vectors of 8]

  // Rows a multiple of 512 bytes apart would meet in the same lines of L1 when they are read down a column.
  static int stride(int key_block) { return key_block + 16; }
  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static size_t tile_bytes(int key_block) {
    return aligned(sizeof(Unit) * (kBackwardRows / Gemm::kUnit) * static_cast<size_t>(stride(key_block)));
  }
  static size_t group_bytes(int key_block) {
    return kPairs ? aligned(sizeof(float) * Gemm::kRows * static_cast<size_t>(stride(key_block))) : 0;
  }
  static size_t row_bytes(int key_block) { return aligned(sizeof(float) * static_cast<size_t>(stride(key_block))); }
  static size_t number_bytes(int key_block) {
    return aligned(sizeof(uint16_t) * static_cast<size_t>(round_up(stride(key_block), 8 * kWidth)));
  }
  static size_t bytes(int key_block) {
    return 2 * tile_bytes(key_block) + 3 * group_bytes(key_block) + row_bytes(key_block) + number_bytes(key_block);
  }

  BackwardScratch(void* memory, int key_block) {
    auto* p = static_cast<unsigned char*>(memory);
    auto take = [&p](size_t size) {
      unsigned char* taken = p;
      p += size;
      return taken;
    };
    weights = reinterpret_cast<Unit*>(take(tile_bytes(key_block)));
    gradients = reinterpret_cast<Unit*>(take(tile_bytes(key_block)));
    scores = reinterpret_cast<float*>(take(group_bytes(key_block)));
    dp = reinterpret_cast<float*>(take(group_bytes(key_block)));
    left_rows = reinterpret_cast<typename Gemm::Element*>(take(group_bytes(key_block)));
    slopes = reinterpret_cast<float*>(take(row_bytes(key_block)));
    numbers = reinterpret_cast<uint16_t*>(take(number_bytes(key_block)));
  }
};

}  // namespace
}  // namespace rootdk::cpu
