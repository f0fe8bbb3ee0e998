#pragma once

// The Hopper path, as the dispatcher's list sees it.

#include "core/implementation.h"

namespace rootdk::cuda::hopper {

// Both are called "sm90".
const ForwardImplementation& forward();
const BackwardImplementation& backward();

}  // namespace rootdk::cuda::hopper
