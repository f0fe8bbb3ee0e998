#include "cpu/targets.h"

namespace rootdk::cpu {
namespace {

constexpr Target kTargets[] = {
    {.name = "wasm",
     .kernels = wasm_kernels,
     .backward = backward_wasm_kernels,
     .missing = [] { return std::string(); }},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace rootdk::cpu
