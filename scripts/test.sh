#!/usr/bin/env bash
# Builds a preset and runs its tests; closes on a line 'N passed, N failed, N skipped'.
# usage: scripts/test.sh PRESET [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
case $preset in
  release) folder=build ;;
  asan-ubsan) folder=build-asan ;;
  *) folder=build-$preset ;;
esac

echo "== $preset: build"
scripts/build.sh "$preset" -DROOTDK_TESTS=ON

echo "== $preset: test"
status=0
ctest --test-dir "$folder" --output-on-failure --parallel "${JOBS:-$(nproc)}" \
  --output-junit "$PWD/$folder/junit.xml" "$@" || status=$?
python3 scripts/count_tests.py "$folder/junit.xml"
exit $status
