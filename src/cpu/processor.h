#pragma once

#include <string>

namespace rootdk::cpu {

// What this processor and its operating system offer, looked up once.
struct Processor {
  bool avx2 = false;        // with fma and f16c
  bool avx512 = false;      // f, bw, vl, dq
  bool avx512bf16 = false;  // vdpbf16ps
  bool slow_bf16 = false;   // vdpbf16ps takes longer than the two products of f32 that it replaces: Intel's cores
  bool avx512vnni = false;  // vpdpbusd
  bool avx512vbmi = false;  // vpermi2b
  bool amx = false;         // amx-tile and amx-bf16, and the kernel lets this process use the tiles
  bool amx_bytes = false;   // and amx-int8
  bool arm_dot = false;     // sdot and udot
  bool arm_bf16 = false;    // bfdot, with arm_dot
};

const Processor& processor();

// What keeps this processor from running a target, as a sentence; empty where it has the feature.
std::string without(bool has, const char* feature);

}  // namespace rootdk::cpu
