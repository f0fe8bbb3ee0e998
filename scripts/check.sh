#!/usr/bin/env bash
# What make check adds to make test: the sanitizers, fuzzing, and the kernels on other processors.
set -euo pipefail
cd "$(dirname "$0")/.."

# Python loads the library into an interpreter that has no sanitizer; its tests run in make test.
scripts/test.sh asan-ubsan all --label-exclude python
# The thread sanitizer looks at the tests that start threads.
scripts/test.sh tsan thread_tests --label-regex threads
scripts/cross.sh
scripts/wasm.sh check
scripts/fuzz.sh
