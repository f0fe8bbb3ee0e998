#!/usr/bin/env bash
# What make check adds to make test: clang-tidy, warnings as errors, the sanitizers, fuzzing, the kernels on other
# processors, attention over ranks, and random configurations.
set -euo pipefail
cd "$(dirname "$0")/.."

# Clang 14 builds everything but the tests, with warnings as errors, and leaves clang-tidy its compile commands.
echo "== clang: build with warnings as errors"
scripts/build.sh clang all -DROOTDK_TESTS=OFF
echo "== clang-tidy"
scripts/tidy.py build-clang

# Python loads the library into an interpreter that has no sanitizer; its tests run in make test.
scripts/test.sh asan-ubsan all --label-exclude python
# The thread sanitizer looks at the tests that start threads.
scripts/test.sh tsan thread_tests --label-regex threads
scripts/cross.sh
scripts/wasm.sh check
scripts/ranks.sh
scripts/fuzz.sh
scripts/campaign.sh check
