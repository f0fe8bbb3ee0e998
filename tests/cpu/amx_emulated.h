#pragma once

#include "cpu/backward_table.h"
#include "cpu/kernel_table.h"

namespace rootdk::cpu {

// The kernels of the amx target on tiles in software: the same code, on a processor without AMX.
const KernelTable& emulated_amx_kernels();
const BackwardTable& emulated_amx_backward_kernels();

}  // namespace rootdk::cpu
