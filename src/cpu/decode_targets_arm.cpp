#include "cpu/decode_targets.h"

namespace rootdk::cpu {
namespace {

constexpr DecodeTarget kTargets[] = {
    {.name = "neon", .kernels = neon_decode, .linear = neon_linear, .missing = [] { return std::string(); }}};

}  // namespace

std::span<const DecodeTarget> decode_targets() { return kTargets; }

}  // namespace rootdk::cpu
