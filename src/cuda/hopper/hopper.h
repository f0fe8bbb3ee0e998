#pragma once

// The Hopper path, as the dispatcher's list sees it.

#include "core/implementation.h"

namespace rootdk::cuda::hopper {

const ForwardImplementation& forward();  // "sm90"

}  // namespace rootdk::cuda::hopper
