#pragma once

// Loads and stores of fewer lanes than a vector has, for targets without masked memory access: through a small buffer.

#include <stdint.h>

namespace rootdk::cpu {
namespace {

template <class Base>
struct WithPartialAccess : Base {
  using Vec = typename Base::Vec;
  static constexpr int kWidth = Base::kWidth;

  static Vec load_first(const float* p, int n) {
    float buffer[kWidth] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return Base::load(buffer);
  }
  static void store_first(float* p, Vec x, int n) {
    float buffer[kWidth];
    Base::store(buffer, x);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }
  static Vec load_bf16_first(const uint16_t* p, int n) {
    uint16_t buffer[kWidth] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return Base::load_bf16(buffer);
  }
  static Vec load_f16_first(const uint16_t* p, int n) {
    uint16_t buffer[kWidth] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return Base::load_f16(buffer);
  }
  static void store_bf16_first(uint16_t* p, Vec x, int n) {
    uint16_t buffer[kWidth];
    Base::store_bf16(buffer, x);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }
  static void store_f16_first(uint16_t* p, Vec x, int n) {
    uint16_t buffer[kWidth];
    Base::store_f16(buffer, x);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }
};

}  // namespace
}  // namespace rootdk::cpu
