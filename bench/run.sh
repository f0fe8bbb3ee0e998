#!/usr/bin/env bash
# The standard grid: every case measured by `rootdk bench`, the results as docs/benchmarks.jsonl, the table as
# docs/benchmarks.md and the roofline as docs/roofline.svg. Where PyTorch is importable, its attention beside ours.
# usage: bench/run.sh [REPEAT]
set -euo pipefail
cd "$(dirname "$0")/.."

rootdk=build/rootdk
repeat=${1:-10}
results=docs/benchmarks.jsonl
mkdir -p docs
: >"$results.new"

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
run forward --dtype f32 --head-dim 64 --len 4096
for dtype in f32 bf16; do
  for dim in 64 128; do run backward --dtype $dtype --head-dim $dim --len 1024; done
done
mv "$results.new" "$results"
python3 bench/report.py "$results" docs
if python3 -c 'import torch' 2>/dev/null; then
  for dtype in f32 bf16; do python3 bench/compare_torch.py --dtype $dtype --repeat "$repeat"; done
fi
