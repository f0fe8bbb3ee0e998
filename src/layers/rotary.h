#pragma once

// RoPE inside the layers: the angles are computed once a forward pass, in double, and shared by every layer.

#include <memory>
#include <span>

#include "layers/tape.h"
#include "rootdk/positions.h"

namespace rootdk {

// cos and sin of each row's angles, the factor of the scaling applied.
struct RopeTable {
  RopeLayout layout = RopeLayout::half_split;
  std::int64_t head_dim = 0, pairs = 0;
  Tensor cosine, sine;  // f32 [rows, pairs]
};

// positions has one entry a row of the activations.
std::shared_ptr<const RopeTable> make_rope_table(std::int64_t head_dim, const RopeParams& params,
                                                 std::span<const std::int32_t> positions);

// Rotates each head of x [rows, heads * head_dim].
Value rotate(Context& context, const Value& x, std::shared_ptr<const RopeTable> table);

}  // namespace rootdk
