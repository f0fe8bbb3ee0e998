#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cpu/backward_table.h"
#include "cpu/kernel_table.h"

namespace rootdk::cpu {

// A target of this build: its kernels, and what keeps this processor from running them.
struct Target {
  std::string_view name;
  const KernelTable& (*kernels)() = nullptr;
  const BackwardTable& (*backward)() = nullptr;
  bool bf16_products = false;          // multiplies bf16 and nothing else
  std::string (*missing)() = nullptr;  // what the processor lacks, as a sentence; empty: nothing
};

// In the order in which they are preferred. One of targets_x86.cpp, _arm.cpp, _wasm.cpp, _none.cpp provides it.
std::span<const Target> targets();

}  // namespace rootdk::cpu
