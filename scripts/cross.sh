#!/usr/bin/env bash
# The kernels on another processor: cross-compiled for 64-bit Arm, run under qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-aarch64
cmake -B "$build" -G Ninja --toolchain cmake/toolchains/aarch64-linux-gnu.cmake \
  -DROOTDK_CUDA=OFF -DROOTDK_TOOLS=OFF -DROOTDK_INSTALL=OFF -DROOTDK_FUZZ=OFF
cmake --build "$build" --target cpu_conformance_test cpu_threads_test cpu_workspace_test
ctest --test-dir "$build" --output-on-failure --output-junit "$PWD/$build/junit.xml" --tests-regex '^cpu_(conformance|threads|workspace|isolation)_test$'
