#include "cpu/decode_targets.h"
#include "cpu/processor.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

bool has_pairs() { return processor().avx512bf16 && processor().avx512vnni; }

const DecodeTable& bytes_decode() {
  static const DecodeTable kTable = with_kinds(avx512_decode(), avx512vnni_decode());
  return kTable;
}

// A processor may have products of bf16 without vpermi2b: it widens e4m3 as avx512 does. One on which these products
// are slow widens both: tokens take as long and prompts a half to two thirds of the time (docs/results/intel-amx.md).
const DecodeTable& pairs_decode() {
  static const DecodeTable kTable = [] {
    if (processor().slow_bf16) return bytes_decode();
    const DecodeTable table = with_kinds(bytes_decode(), avx512bf16_decode());
    return processor().avx512vbmi ? with_kinds(table, avx512vbmi_decode()) : table;
  }();
  return kTable;
}

const LinearTable& tiled_linear() {
  static const LinearTable kTable = with_tiles(avx512bf16_linear(), amx_linear());
  return kTable;
}

// Decoding is bound by memory and has too few rows for tiles: amx runs the kernels of avx512bf16.
constexpr DecodeTarget kTargets[] = {
    {.name = "amx",
     .kernels = pairs_decode,
     .linear = tiled_linear,
     .few_queries = false,
     .missing = [] { return without(processor().amx_bytes && has_pairs(), "amx_bf16 with amx_int8"); }},
    {.name = "avx512bf16",
     .kernels = pairs_decode,
     .linear = avx512bf16_linear,
     .missing = [] { return without(has_pairs(), "avx512_bf16 with avx512_vnni"); }},
    {.name = "avx512vnni",
     .kernels = bytes_decode,
     .linear = avx512_linear,
     .few_queries = false,
     .missing = [] { return without(processor().avx512vnni, "avx512_vnni"); }},
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
