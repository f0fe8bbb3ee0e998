#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cpu/decode_table.h"

namespace rootdk::cpu {

// A target of this build that decodes, under the name that attention uses for it.
struct DecodeTarget {
  std::string_view name;
  const DecodeTable& (*kernels)() = nullptr;
  std::string (*missing)() = nullptr;  // what the processor lacks, as a sentence; empty: nothing
};

// In the order in which they are preferred. One of decode_targets_x86.cpp, _arm.cpp, _wasm.cpp, _none.cpp provides it.
std::span<const DecodeTarget> decode_targets();

}  // namespace rootdk::cpu
