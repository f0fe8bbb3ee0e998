#pragma once

#include "cpu/linear_table.h"

namespace rootdk::cpu {

// What the amx target adds for products with stored weights, on tiles in software: the same code, on a processor
// without AMX.
const LinearTable& emulated_amx_linear();

}  // namespace rootdk::cpu
