#pragma once

// The path for every GPU from sm_80 on, as the dispatcher's list sees it.

#include "core/implementation.h"

namespace rootdk::cuda::portable {

const ForwardImplementation& forward();    // "sm80"
const BackwardImplementation& backward();  // "sm80"

}  // namespace rootdk::cuda::portable
