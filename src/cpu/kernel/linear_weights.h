#pragma once

// Rows of stored weights, a vector of columns at a time. Included once per target: internal linkage.

#include "cpu/kernel/load.h"
#include "cpu/linear_table.h"

namespace rootdk::cpu {
namespace {

// Integers as vectors of floats, for targets that have nothing better.
struct PlainIntegers {
  static Vec load_i8(const int8_t* p) {
    float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = static_cast<float>(p[i]);
    return Simd::load(lanes);
  }
  // The low or the high halves of kWidth bytes, less 8.
  static Vec load_i4(const uint8_t* p, bool high) {
    float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = static_cast<float>((high ? p[i] >> 4 : p[i] & 15) - 8);
    return Simd::load(lanes);
  }
};

inline const char* row_bytes_at(const LinearBlock& block, int out) {
  return static_cast<const char*>(block.w) + out * block.row_bytes;
}

// f32, bf16, f16.
template <ElementKind kind>
class FloatWeights {
 public:
  using Type = typename Stored<kind>::Type;
  FloatWeights() = default;
  FloatWeights(const LinearBlock& block, int out) : row_(reinterpret_cast<const Type*>(row_bytes_at(block, out))) {}
  Vec load(int64_t k) const { return Stored<kind>::load(row_ + k); }
  Vec load_first(int64_t k, int n) const { return Stored<kind>::load_first(row_ + k, n); }
  const void* address(int64_t k) const { return row_ + k; }

 private:
  const Type* row_ = nullptr;
};

template <class Integers>
class ByteWeights {
 public:
  ByteWeights() = default;
  ByteWeights(const LinearBlock& block, int out) : row_(reinterpret_cast<const int8_t*>(row_bytes_at(block, out))) {}
  Vec load(int64_t k) const { return Integers::load_i8(row_ + k); }
  Vec load_first(int64_t k, int n) const {
    int8_t padded[kWidth] = {};
    for (int i = 0; i < n; ++i) padded[i] = row_[k + i];
    return Integers::load_i8(padded);
  }
  const void* address(int64_t k) const { return row_ + k; }

 private:
  const int8_t* row_ = nullptr;
};

template <class Integers>
class HalfByteWeights {
 public:
  HalfByteWeights() = default;
  HalfByteWeights(const LinearBlock& block, int out)
      : row_(reinterpret_cast<const uint8_t*>(row_bytes_at(block, out))),
        scales_(block.block_scales + out * (block.columns / kBlock)) {}
  Vec load(int64_t k) const {
    const int64_t number = k / kBlock;
    const int place = static_cast<int>(k % kBlock);
    const uint8_t* bytes = row_ + number * (kBlock / 2) + place % (kBlock / 2);
    return Simd::mul(Integers::load_i4(bytes, place >= kBlock / 2), scale(number));
  }
  Vec load_first(int64_t k, int) const { return load(k); }  // never: rows are whole blocks
  const void* address(int64_t k) const { return row_ + k / 2; }

 private:
  static constexpr int kBlock = 32;
  Vec scale(int64_t number) const {
    const uint32_t word = static_cast<uint32_t>(scales_[number]) << 16;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return Simd::set1(value);
  }

  const uint8_t* row_ = nullptr;
  const uint16_t* scales_ = nullptr;
};

// Calls body.template operator()<Weights>() with the class of the block's weights.
template <class Integers, class Body>
void with_weights(WeightKind kind, Body body) {
  switch (kind) {
    case WeightKind::f32: return body.template operator()<FloatWeights<ElementKind::f32>>();
    case WeightKind::bf16: return body.template operator()<FloatWeights<ElementKind::bf16>>();
    case WeightKind::f16: return body.template operator()<FloatWeights<ElementKind::f16>>();
    case WeightKind::i8: return body.template operator()<ByteWeights<Integers>>();
    case WeightKind::i4: return body.template operator()<HalfByteWeights<Integers>>();
  }
}

}  // namespace
}  // namespace rootdk::cpu
