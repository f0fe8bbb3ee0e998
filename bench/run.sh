#!/usr/bin/env bash
# The standard grid: every case measured by `rootdk bench`. Writes docs/results/PAGE.jsonl (every figure), PAGE.md (the tables)
# and PAGE-roofline.svg. Where PyTorch is importable, its attention is measured beside rootdk's.
# usage: [PAGE=zen4] [MACHINE="one Zen 4 core"] [PYTHON=python3] bench/run.sh [REPEAT]
set -euo pipefail
cd "$(dirname "$0")/.."

rootdk=build/rootdk
repeat=${1:-10}
python=${PYTHON:-python3}
# Without a name the page is called after the processor, so that a run here does not overwrite the page of another machine.
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
page=${PAGE:-$(tr -cs 'A-Za-z0-9' - <<<"${processor:-this-machine}" | tr A-Z a-z | sed 's/^-*//; s/-*$//')}
machine=${MACHINE:-${processor:-this machine}}
results=docs/results/$page.jsonl
[ -n "${MACHINE:-}" ] || [ ! -s "$results" ] || machine=$(sed -n '1s/.*"machine": *"\([^"]*\)".*/\1/p' "$results")
printf '{"machine": "%s", "date": "%s", "command": "PAGE=%s make bench"}\n' "$machine" "$(date +%F)" "$page" >"$results.new"

run() {
  echo "bench $*" >&2
  "$rootdk" bench "$@" --repeat "$repeat" --json >>"$results.new"
}

for dtype in f32 bf16 f16; do
  for dim in 64 128; do
    run forward --dtype $dtype --head-dim $dim
    run forward --dtype $dtype --head-dim $dim --causal
    run forward --dtype $dtype --head-dim $dim --stats
    run forward --dtype $dtype --head-dim $dim --len 128 --batch 32
  done
done
for dim in 96 192 256; do run forward --dtype f32 --head-dim $dim; done
run forward --dtype f32 --head-dim 128 --kv-heads 2
for dim in 64 128; do run forward --dtype f32 --head-dim $dim --len 4096; done
for dtype in f32 bf16; do
  for dim in 64 128; do run backward --dtype $dtype --head-dim $dim; done
done
# Where memory lands differs from one process to the next, and its rate with it: four of each, the report keeps the fastest.
decode() { for _ in 1 2 3 4; do run decode --batch 1 --heads 32 --kv-heads 8 --head-dim 128 "$@"; done; }
for dtype in bf16 f16 i8 f8e4m3 f32; do
  decode --dtype $dtype --kv-len 32768
  for order in filled random; do decode --dtype $dtype --kv-len 32768 --page 16 --page-order $order; done
done
# What a token costs over the length of the cache.
for len in 1024 4096 16384 65536; do decode --dtype bf16 --kv-len $len; done
if "$python" -c 'import torch' 2>/dev/null; then
  for dtype in f32 bf16; do
    for pass in "" --backward; do
      echo "compare_torch $dtype $pass" >&2
      "$python" bench/compare_torch.py --device cpu --dtype $dtype $pass --repeat "$repeat" --json >>"$results.new"
    done
  done
fi
mv "$results.new" "$results"
"$python" bench/report.py "$results"
