#pragma once

#include "cuda/hopper/forward_choice.h"

namespace rootdk::cuda::hopper {

// The parameters that forward and decode share: everything but the schedule.
ForwardParams make_params(const ForwardCall& call);

Softcap make_softcap(double cap, double scale);

void launch_forward(const ForwardCall& call, const ForwardChoice& choice);

}  // namespace rootdk::cuda::hopper
