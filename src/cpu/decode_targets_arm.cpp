#include "cpu/decode_targets.h"
#include "cpu/processor.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

const DecodeTable& bytes_decode() {
  static const DecodeTable kTable = with_kinds(neon_decode(), neondot_decode());
  return kTable;
}

const DecodeTable& pairs_decode() {
  static const DecodeTable kTable = with_kinds(bytes_decode(), neonbf16_decode());
  return kTable;
}

constexpr DecodeTarget kTargets[] = {
    {.name = "neonbf16",
     .kernels = pairs_decode,
     .linear = neonbf16_linear,
     .missing = [] { return without(processor().arm_bf16, "bf16 products with dot products (bf16, asimddp)"); }},
    {.name = "neondot",
     .kernels = bytes_decode,
     .linear = neondot_linear,
     .few_queries = false,
     .missing = [] { return without(processor().arm_dot, "dot products of bytes (asimddp)"); }},
    {.name = "neon", .kernels = neon_decode, .linear = neon_linear, .missing = [] { return std::string(); }},
};

}  // namespace

ROOTDK_API std::span<const DecodeTarget> decode_targets() { return kTargets; }

}  // namespace rootdk::cpu
