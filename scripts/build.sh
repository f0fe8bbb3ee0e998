#!/usr/bin/env bash
# Configures a preset quietly (the log appears only when it fails) and builds it on all hardware threads.
# usage: scripts/build.sh PRESET [cmake -D arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" "$@" >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}"
