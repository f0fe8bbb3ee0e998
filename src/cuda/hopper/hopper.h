#pragma once

// The Hopper path, as the dispatcher's list sees it.

#include <string>

#include "core/implementation.h"
#include "core/kv_call.h"

namespace rootdk::cuda::hopper {

// All are called "sm90".
const ForwardImplementation& forward();
const BackwardImplementation& backward();
const AttendImplementation& attend();

// Why kernels for Hopper cannot run on the device; empty: they can.
std::string refuse_device(Device device);

}  // namespace rootdk::cuda::hopper
