#pragma once

#include "core/attention_call.h"
#include "cpu/kernel_table.h"

namespace rootdk::cpu {

// Fused attention on the kernels of one target.
void run_forward(const ForwardCall& call, const KernelTable& kernels);

}  // namespace rootdk::cpu
