#pragma once

#include "cuda/hopper/forward/choice.h"

namespace rootdk::cuda::hopper {

// The parameters that forward and decode share: everything but the schedule.
ForwardParams make_params(const ForwardCall& call);

// What backward needs of it as well.
DeviceTensor row_tensor(const ConstTensorView& view);  // [batch, heads, rows, ...]; not given: null
int window_limit(std::int64_t window);                 // -1: kNoLimit
Softcap make_softcap(double cap, double scale);

void launch_forward(const ForwardCall& call, const ForwardChoice& choice);

}  // namespace rootdk::cuda::hopper
