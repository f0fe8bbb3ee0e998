#!/usr/bin/env python3
"""Writes wgmma_products.cuh: one wrapper per element type and accumulator width. Usage: generate_wgmma.py > wgmma_products.cuh

  Wgmma<Element, N>::ss<TransposeA, TransposeB>(d, a, b)       d[64 x N] += a (shared) b (shared)
  Wgmma<Element, N>::ss_zero<TransposeA, TransposeB>(d, a, b)  d[64 x N]  = a (shared) b (shared)
  Wgmma<Element, N>::rs<TransposeB>(d, a0..a3, b, keep)        d[64 x N] += a (registers) b (shared); keep = 0: d is overwritten

f32 accumulators; an instruction multiplies 32 bytes of each row of a: 16 columns of 16-bit elements, 32 of e4m3. ss_zero
only writes d ("=f"), so that the old values need no registers. There is no transposed operand of e4m3: both transpose
parameters must be 0.
"""

WIDTHS = [64, 80, 96, 112, 128, 144, 160, 176, 192, 256]
E4M3_WIDTHS = [64, 96, 128, 160, 192, 224, 256]
ELEMENTS = {"__nv_bfloat16": ("bf16", WIDTHS), "__half": ("f16", WIDTHS), "__nv_fp8_e4m3": ("e4m3", E4M3_WIDTHS)}


def quoted_list(names, per_line, separator):
    lines = [", ".join(names[i : i + per_line]) for i in range(0, len(names), per_line)]
    return separator.join(lines)


def product(name, element, width, a_in_registers, accumulate):
    count = width // 2
    mode = "+f" if accumulate else "=f"
    accumulators = quoted_list([f"%{i}" for i in range(count)], 24, ', "\n        "')
    outputs = quoted_list([f'"{mode}"(d[{i}])' for i in range(count)], 8, ",\n          ")
    if a_in_registers:
        template, parameters = "int TransposeB", ", ".join(f"std::uint32_t a{i}" for i in range(4))
        operand = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = ", ".join(f'"r"(a{i})' for i in range(4))
        next_operand, transposes = count + 4, ["TransposeB"]
        b_parameter, keep, keep_input = "std::uint64_t b, int keep = 1", f"%{count + 6}", ', "r"(keep)'
    else:
        template, parameters = "int TransposeA, int TransposeB", "std::uint64_t a"
        operand, inputs = f"%{count}", '"l"(a)'
        next_operand, transposes = count + 1, ["TransposeA", "TransposeB"]
        b_parameter, keep, keep_input = "std::uint64_t b", str(int(accumulate)), ""
    if element == "e4m3":
        columns, flags, constants = 32, "", ""
        check = "".join(f"    static_assert({name} == 0);\n" for name in transposes)
        keep = keep.replace(str(count + 6), str(count + 5))
    else:
        columns, check = 16, ""
        flags = "".join(f", %{next_operand + 1 + i}" for i in range(len(transposes)))
        constants = "".join(f', "n"({name})' for name in transposes)
    return f"""  template <{template}>
  static __device__ __forceinline__ void {name}(float (&d)[{count}], {parameters}, {b_parameter}) {{
{check}    asm volatile(
        "{{\\n .reg .pred accumulate;\\n setp.ne.b32 accumulate, {keep}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{width}k{columns}.f32.{element}.{element} {{"
        "{accumulators}"
        "}}, {operand}, %{next_operand}, accumulate, 1, 1{flags};\\n}}\\n"
        : {outputs}
        : {inputs}, "l"(b){constants}{keep_input});
  }}
"""


def main():
    print("// Written by generate_wgmma.py: change the script, not this file.")
    print("// clang-format off")
    print("#pragma once\n\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n\n#include <cstdint>\n")
    print("namespace rootdk::cuda::ptx {\n")
    print("template <class Element, int Width>\nstruct Wgmma;\n")
    for cpp_type, (element, widths) in ELEMENTS.items():
        for width in widths:
            print(f"template <>\nstruct Wgmma<{cpp_type}, {width}> {{")
            print(product("ss", element, width, a_in_registers=False, accumulate=True), end="")
            print(product("ss_zero", element, width, a_in_registers=False, accumulate=False), end="")
            print(product("rs", element, width, a_in_registers=True, accumulate=True), end="")
            print("};\n")
    print("}  // namespace rootdk::cuda::ptx")


if __name__ == "__main__":
    main()
