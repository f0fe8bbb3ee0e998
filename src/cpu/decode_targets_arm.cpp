#include "cpu/decode_targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr DecodeTarget kTargets[] = {
    {.name = "neon", .kernels = neon_decode, .linear = neon_linear, .missing = [] { return std::string(); }}};

}  // namespace

ROOTDK_API std::span<const DecodeTarget> decode_targets() { return kTargets; }

}  // namespace rootdk::cpu
