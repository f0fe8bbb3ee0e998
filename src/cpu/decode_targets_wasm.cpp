#include "cpu/decode_targets.h"

namespace rootdk::cpu {
namespace {

constexpr DecodeTarget kTargets[] = {
    {.name = "wasm", .kernels = wasm_decode, .linear = wasm_linear, .missing = [] { return std::string(); }}};

}  // namespace

std::span<const DecodeTarget> decode_targets() { return kTargets; }

}  // namespace rootdk::cpu
