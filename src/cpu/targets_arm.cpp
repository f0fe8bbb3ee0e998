#include "cpu/processor.h"
#include "cpu/targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr Target kTargets[] = {
    {.name = "neonbf16",
     .kernels = neonbf16_kernels,
     .backward = backward_neonbf16_kernels,
     .bf16_products = true,
     .missing = [] { return without(processor().arm_bf16, "bf16 products with dot products (bf16, asimddp)"); }},
    {.name = "neon",
     .kernels = neon_kernels,
     .backward = backward_neon_kernels,
     .missing = [] { return std::string(); }},
};

}  // namespace

ROOTDK_API std::span<const Target> targets() { return kTargets; }

}  // namespace rootdk::cpu
