#pragma once

// The rows of a forward call, for attention and for attention in e4m3.

#include "core/attention_call.h"

namespace rootdk::reference {

// What e4m3 adds to the operation (rootdk/fp8.h).
struct Fp8Rule {
  ConstTensorView q_shift{};  // added to lse and max_logit, times the scale; not given: nothing
};

// `fp8` null: the weights stay as they are.
void forward_rows(const ForwardCall& call, const Fp8Rule* fp8 = nullptr);

}  // namespace rootdk::reference
