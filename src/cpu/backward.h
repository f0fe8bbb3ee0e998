#pragma once

#include "core/attention_call.h"
#include "cpu/backward_table.h"

namespace rootdk::cpu {

void run_backward(const BackwardCall& call, const BackwardTable& kernels);

}  // namespace rootdk::cpu
