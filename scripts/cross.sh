#!/usr/bin/env bash
# The kernels on another processor: cross-compiled for 64-bit Arm, run under qemu-user. Once on a processor with every
# extension, where each target is tested by its name, and once on one without dot products and bf16, where what needs
# them is refused and neon is chosen.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-aarch64
cache=dispatch_kv_cache
cmake -B "$build" -G Ninja --toolchain cmake/toolchains/aarch64-linux-gnu.cmake \
  -DROOTDK_CUDA=OFF -DROOTDK_TOOLS=OFF -DROOTDK_INSTALL=OFF -DROOTDK_FUZZ=OFF
cmake --build "$build" --target cpu_conformance_test cpu_threads_test cpu_workspace_test cpu_linear_test \
  ${cache}_attend_test ${cache}_bits_test ${cache}_bytes_test ${cache}_schedule_test

run_tests() {  # PROCESSOR REGEX
  QEMU_CPU=$1 ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" \
    --output-junit "$PWD/$build/junit-$1.xml" --tests-regex "$2"
}
run_tests max "^(cpu_(conformance|threads|workspace|isolation|linear)|${cache}_(attend|bits|bytes|schedule))_test$"
run_tests cortex-a72 "^(cpu_linear|${cache}_(attend|bytes|schedule))_test$"
