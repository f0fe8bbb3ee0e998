#!/usr/bin/env bash
# Configures a preset quietly (the log appears only when it fails) and builds a target on all hardware threads.
# usage: scripts/build.sh PRESET TARGET [cmake -D arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 target=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" "$@" >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset "$preset" --target "$target" --parallel "${JOBS:-$(nproc)}"
