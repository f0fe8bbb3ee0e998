#!/usr/bin/env bash
# Runs every fuzz target longer than make test does; closes on a line 'N passed, N failed, N skipped'.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== fuzz: build"
scripts/build.sh release all -DROOTDK_TESTS=ON -DROOTDK_FUZZ=ON

echo "== fuzz: run"
status=0
ctest --test-dir build -C Check --label-regex fuzz --output-on-failure --output-junit "$PWD/build/junit-fuzz.xml" ||
  status=$?
python3 scripts/count_tests.py build/junit-fuzz.xml
exit $status
