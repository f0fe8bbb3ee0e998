#!/usr/bin/env bash
# Builds a target of a preset and runs its tests; closes on a line 'N passed, N failed, N skipped'.
# usage: scripts/test.sh PRESET TARGET [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 target=$2
shift 2
case $preset in
  release) folder=build ;;
  asan-ubsan) folder=build-asan ;;
  *) folder=build-$preset ;;
esac

echo "== $preset: build"
scripts/build.sh "$preset" "$target" -DROOTDK_TESTS=ON

echo "== $preset: test"
status=0
ctest --test-dir "$folder" --output-on-failure --parallel "${JOBS:-$(nproc)}" \
  --output-junit "$PWD/$folder/junit.xml" "$@" || status=$?
python3 scripts/count_tests.py "$folder/junit.xml"
exit $status
