#pragma once

// The path for every GPU from sm_80 on, as the dispatcher's list sees it.

#include "core/implementation.h"
#include "core/kv_call.h"

namespace rootdk::cuda::portable {

// All are called "sm80".
const ForwardImplementation& forward();
const BackwardImplementation& backward();
const AttendImplementation& attend();

}  // namespace rootdk::cuda::portable
