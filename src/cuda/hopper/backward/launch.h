#pragma once

#include <cstddef>

#include "cuda/hopper/backward/choice.h"

namespace rootdk::cuda::hopper {

std::size_t backward_workspace(const BackwardChoice& choice);

void launch_backward(const BackwardCall& call, const BackwardChoice& choice);

}  // namespace rootdk::cuda::hopper
