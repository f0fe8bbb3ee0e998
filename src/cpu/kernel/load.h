#pragma once

// Reading and writing the caller's element types as floats. Included once per target: internal linkage.

#include "cpu/kernel_table.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

template <ElementKind kind>
struct Stored;
template <>
struct Stored<ElementKind::f32> {
  using Type = float;
  static Vec load(const float* p) { return Simd::load(p); }
  static Vec load_first(const float* p, int n) { return Simd::load_first(p, n); }
  static void store(float* p, Vec x) { Simd::store(p, x); }
  static void store_first(float* p, Vec x, int n) { Simd::store_first(p, x, n); }
};
template <>
struct Stored<ElementKind::bf16> {
  using Type = uint16_t;
  static Vec load(const uint16_t* p) { return Simd::load_bf16(p); }
  static Vec load_first(const uint16_t* p, int n) { return Simd::load_bf16_first(p, n); }
  static void store(uint16_t* p, Vec x) { Simd::store_bf16(p, x); }
  static void store_first(uint16_t* p, Vec x, int n) { Simd::store_bf16_first(p, x, n); }
};
template <>
struct Stored<ElementKind::f16> {
  using Type = uint16_t;
  static Vec load(const uint16_t* p) { return Simd::load_f16(p); }
  static Vec load_first(const uint16_t* p, int n) { return Simd::load_f16_first(p, n); }
  static void store(uint16_t* p, Vec x) { Simd::store_f16(p, x); }
  static void store_first(uint16_t* p, Vec x, int n) { Simd::store_f16_first(p, x, n); }
};

// Calls body with Stored<kind> for a kind known only now.
template <class Body>
auto with_stored(ElementKind kind, Body body) {
  switch (kind) {
    case ElementKind::bf16: return body(Stored<ElementKind::bf16>{});
    case ElementKind::f16: return body(Stored<ElementKind::f16>{});
    default: return body(Stored<ElementKind::f32>{});
  }
}

// One element of a strided array, for the rare paths.
inline float element(const void* data, int64_t index, ElementKind kind) {
  return with_stored(kind, [&](auto stored) {
    using Type = typename decltype(stored)::Type;
    float lanes[kWidth];
    Simd::store(lanes, stored.load_first(static_cast<const Type*>(data) + index, 1));
    return lanes[0];
  });
}

}  // namespace
}  // namespace rootdk::cpu
