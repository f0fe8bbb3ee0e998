#include "cpu/targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr Target kTargets[] = {
    {.name = "neon",
     .kernels = neon_kernels,
     .backward = backward_neon_kernels,
     .missing = [] { return std::string(); }},
};

}  // namespace

ROOTDK_API std::span<const Target> targets() { return kTargets; }

}  // namespace rootdk::cpu
