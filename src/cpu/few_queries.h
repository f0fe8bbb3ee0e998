#pragma once

#include <string>

#include "core/attention_call.h"
#include "cpu/decode_table.h"

namespace rootdk::cpu {

// attention() with a few query rows over many keys runs on the kernels of decoding: they read keys and values where
// they lie, instead of packing them first for rows that are not there.
std::string refuse_few_queries(const ForwardCall& call);
void run_few_queries(const ForwardCall& call, const DecodeTable& kernels);

}  // namespace rootdk::cpu
