#!/usr/bin/env bash
# Builds a preset and runs its tests; closes on a line 'N passed, N failed, N skipped'.
# usage: scripts/test.sh PRESET [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
jobs=$(nproc)
folder=build
case $preset in
  release) ;;
  asan-ubsan) folder=build-asan ;;
  *) folder=build-$preset ;;
esac

echo "== $preset: configure and build"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" -DROOTDK_TESTS=ON >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset "$preset" --parallel "$jobs"

echo "== $preset: test"
status=0
ctest --test-dir "$folder" --output-on-failure --parallel "$jobs" --output-junit "$PWD/$folder/junit.xml" "$@" || status=$?
python3 scripts/count_tests.py "$folder/junit.xml"
exit $status
