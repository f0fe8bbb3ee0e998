#pragma once

#include "cuda/hopper/forward/choice.h"

namespace rootdk::cuda::hopper {

void launch_forward(const ForwardCall& call, const ForwardChoice& choice);

}  // namespace rootdk::cuda::hopper
