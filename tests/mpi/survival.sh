#!/usr/bin/env bash
# Kills one of four ranks at a random moment, again and again: every other rank ends with an error.
# usage: survival.sh MPIEXEC PROGRAM [TIMES [TIMEOUT_SECONDS]]
# A rank that hangs keeps this script waiting: the time-out of each wait is the transport's own.
set -uo pipefail
mpiexec=$1 program=$2 times=${3:-50} timeout=${4:-5}
here=$(cd "$(dirname "$0")" && pwd)
command -v "$mpiexec" >/dev/null || { echo "skipped: $mpiexec was not found (Debian: openmpi-bin)"; exit 77; }
export ROOTDK_THREADS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ranks=4 at_once=5  # most of the time the ranks wait
for ((first = 0; first < times; first += at_once)); do
  for ((i = first; i < first + at_once && i < times; ++i)); do
    "$here/mpirun.sh" "$mpiexec" $ranks "$program" --die $((RANDOM % ranks)) "$timeout" >"$folder/$i" 2>&1 &
  done
  wait
done
failures=0
for ((i = 0; i < times; ++i)); do
  grep -q "$((ranks - 1)) of $((ranks - 1)) ranks got an error" "$folder/$i" && continue
  failures=$((failures + 1))
  cat "$folder/$i"
done
seconds=$(sed -n 's/.* after \([0-9.]*\) s$/\1/p' "$folder"/* | sort -n)
echo "$times ranks killed of $ranks each, time-out $timeout s: $((times - failures)) times every other rank ended with an error," \
  "$(head -1 <<<"$seconds") to $(tail -1 <<<"$seconds") s after it began"
[ "$failures" = 0 ]
