#pragma once

#include "core/linear_call.h"
#include "cpu/linear_table.h"

namespace rootdk::cpu {

// Computes a call with the kernels of a target.
void run_linear(const LinearCall& call, const LinearTable& kernels);

}  // namespace rootdk::cpu
