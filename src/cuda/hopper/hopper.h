#pragma once

// The Hopper path, as the dispatcher's list sees it.

#include "core/fp8_call.h"
#include "core/implementation.h"
#include "core/kv_call.h"

namespace rootdk::cuda::hopper {

// All are called "sm90".
const ForwardImplementation& forward();
const BackwardImplementation& backward();
const Fp8ForwardImplementation& fp8_forward();
const Fp8BackwardImplementation& fp8_backward();
const AttendImplementation& attend();

}  // namespace rootdk::cuda::hopper
