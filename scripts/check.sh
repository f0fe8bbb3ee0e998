#!/usr/bin/env bash
# What make check adds to make test: the sanitizers, the other compiler, fuzzing, and the tests on another processor.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/test.sh asan-ubsan
# The thread sanitizer sees what threads do to each other: the tests that start some.
scripts/test.sh tsan --label-regex threads
scripts/cross.sh
scripts/fuzz.sh
