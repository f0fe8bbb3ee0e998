#pragma once

// Rows of stored weights that are floats, a vector of columns at a time. Included once per target: internal linkage.

#include "cpu/kernel/load.h"
#include "cpu/linear_table.h"

namespace rootdk::cpu {
namespace {

template <ElementKind kind>
class FloatWeights {
 public:
  using Type = typename Stored<kind>::Type;
  FloatWeights() = default;
  FloatWeights(const LinearBlock& block, int out)
      : row_(reinterpret_cast<const Type*>(static_cast<const char*>(block.w) + out * block.row_bytes)) {}
  Vec load(int64_t k) const { return Stored<kind>::load(row_ + k); }
  Vec load_first(int64_t k, int n) const { return Stored<kind>::load_first(row_ + k, n); }
  const void* address(int64_t k) const { return row_ + k; }

 private:
  const Type* row_ = nullptr;
};

// Calls body.template operator()<Weights>() with the class of the block's weights.
template <class Body>
void with_weights(WeightKind kind, Body body) {
  switch (kind) {
    case WeightKind::bf16: return body.template operator()<FloatWeights<ElementKind::bf16>>();
    case WeightKind::f16: return body.template operator()<FloatWeights<ElementKind::f16>>();
    default: return body.template operator()<FloatWeights<ElementKind::f32>>();
  }
}

}  // namespace
}  // namespace rootdk::cpu
