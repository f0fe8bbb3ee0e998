#pragma once

// From a validated call to the parameters of kernels.

#include <cstdint>

#include "core/attention_call.h"
#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

// The parameters that forward and decode share: everything but the schedule.
ForwardParams make_params(const ForwardCall& call);

// What backward needs as well.
DeviceTensor row_tensor(const ConstTensorView& view);  // [batch, heads, rows, ...]; not given: null
int window_limit(std::int64_t window);                 // -1: kNoLimit
Softcap make_softcap(double cap, double scale);

// For decode: every score is capped the same way, so that its bits do not depend on what else is in its tile.
void cap_alike(ForwardParams& params);

}  // namespace rootdk::cuda::hopper
