#pragma once

#include <string>

#include "core/attention_call.h"
#include "cpu/decode_table.h"

namespace rootdk::cpu {

// attention() with a few query rows over many keys runs on the decode kernels: they read keys and values from the
// tensors themselves, since packing them does not pay for so few rows. A call that asks for these kernels by name may
// have any number of rows: it gets, bit by bit, what attend() gives over a cache of the same type.
std::string refuse_few_queries(const ForwardCall& call, bool asked_for);
void run_few_queries(const ForwardCall& call, const DecodeTable& kernels);

}  // namespace rootdk::cpu
