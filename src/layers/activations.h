#pragma once

#include <string_view>

#include "layers/tape.h"

namespace rootdk {

enum class Activation : std::int32_t {
  relu = 0,
  gelu = 1,        // x Phi(x)
  gelu_tanh = 2,   // the tanh approximation: GPT-2, BLOOM, Gemma
  gelu_quick = 3,  // x sigmoid(1.702 x)
  silu = 4,        // x sigmoid(x)
  tanh = 5,
};

std::string_view name_of(Activation activation);

// y = f(x), element by element.
Value activate(Context& context, const Value& x, Activation activation);

// y = f(gate) * up: SwiGLU with silu, GeGLU with a GELU.
Value gated(Context& context, const Value& gate, const Value& up, Activation activation);

// gpt_oss: g sigmoid(1.702 g) (u + 1) with g = min(gate, limit) and u = clamp(up, -limit, limit).
Value clamped_swiglu(Context& context, const Value& gate, const Value& up, float limit);

}  // namespace rootdk
