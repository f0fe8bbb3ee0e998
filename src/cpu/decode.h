#pragma once

#include "core/kv_call.h"
#include "cpu/decode_table.h"

namespace rootdk::cpu {

void run_attend(const AttendCall& call, const DecodeTable& kernels);

}  // namespace rootdk::cpu
