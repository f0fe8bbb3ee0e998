#pragma once

#include "core/kv_call.h"

namespace rootdk::cpu {

void run_append(const AppendCall& call);

}  // namespace rootdk::cpu
