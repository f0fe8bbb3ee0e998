#include "cpu/processor.h"
#include "cpu/targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr Target kTargets[] = {
    {.name = "amx",
     .kernels = amx_kernels,
     .backward = backward_amx_kernels,
     .bf16_products = true,
     .missing = [] { return without(processor().amx, "amx_bf16 that this process may use"); }},
    {.name = "avx512bf16",
     .kernels = avx512bf16_kernels,
     .backward = backward_avx512bf16_kernels,
     .bf16_products = true,
     .missing = [] { return without(processor().avx512bf16, "avx512_bf16"); }},
    {.name = "avx512",
     .kernels = avx512_kernels,
     .backward = backward_avx512_kernels,
     .missing = [] { return without(processor().avx512, "avx512"); }},
    {.name = "avx2",
     .kernels = avx2_kernels,
     .backward = backward_avx2_kernels,
     .missing = [] { return without(processor().avx2, "avx2 with fma and f16c"); }},
    {.name = "baseline",
     .kernels = baseline_kernels,
     .backward = backward_baseline_kernels,
     .missing = [] { return std::string(); }},
};

}  // namespace

ROOTDK_API std::span<const Target> targets() { return kTargets; }

}  // namespace rootdk::cpu
