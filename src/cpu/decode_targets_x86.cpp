#include "cpu/decode_targets.h"
#include "cpu/processor.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

std::string without(bool has, const char* feature) {
  return has ? std::string() : std::string("this processor has no ") + feature;
}

bool has_pairs() { return processor().avx512bf16 && processor().avx512vnni; }

// Decoding is bound by memory and has too few rows for tiles: amx runs the kernels of avx512bf16.
constexpr DecodeTarget kTargets[] = {
    {.name = "avx512bf16",
     .kernels = avx512bf16_decode,
     .linear = avx512bf16_linear,
     .missing = [] { return without(has_pairs(), "avx512_bf16 with avx512_vnni"); }},
    {.name = "amx",
     .kernels = avx512bf16_decode,
     .linear = avx512bf16_linear,
     .missing = [] { return without(processor().amx && has_pairs(), "amx_bf16"); }},
    {.name = "avx512",
     .kernels = avx512_decode,
     .linear = avx512_linear,
     .missing = [] { return without(processor().avx512, "avx512"); }},
    {.name = "avx2",
     .kernels = avx2_decode,
     .linear = avx2_linear,
     .missing = [] { return without(processor().avx2, "avx2 with fma and f16c"); }},
    {.name = "baseline",
     .kernels = baseline_decode,
     .linear = baseline_linear,
     .missing = [] { return std::string(); }},
};

}  // namespace

ROOTDK_API std::span<const DecodeTarget> decode_targets() { return kTargets; }

}  // namespace rootdk::cpu
