#!/usr/bin/env bash
# Fuzzes each parser for so many seconds from the kept corpus (fuzz/corpus/), keeps what reaches new code there, and says
# how many lines of each source the corpus covers.
# usage: scripts/fuzz_corpus.sh SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz_corpus.sh SECONDS [TARGET...]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors_fuzz config_fuzz tokenizer_fuzz torch_file_fuzz)

scripts/build.sh release write_corpus -DROOTDK_TESTS=ON -DROOTDK_FUZZ=ON
programs=build/fuzz/bin
status=0
for name in "${targets[@]}"; do
  scripts/build.sh release "$name" -DROOTDK_TESTS=ON -DROOTDK_FUZZ=ON
  scripts/build.sh release "${name}_coverage" -DROOTDK_TESTS=ON -DROOTDK_FUZZ=ON
  case $name in
    tokenizer_fuzz | torch_file_fuzz) seeds=fuzz/seeds/${name%_fuzz} ;;
    *) seeds=build/fuzz/${name%_fuzz}_corpus ;;
  esac
  kept=fuzz/corpus/${name%_fuzz}
  found=build/campaign/${name}_found
  mkdir -p "$kept" "$found"
  echo "== $name: $seconds seconds"
  "$programs/$name" -timeout=20 -rss_limit_mb=2048 -max_len=4096 -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="build/campaign/$name-" "$found" "$kept" "$seeds" 2>"build/campaign/$name.log" || {
    status=1
    tail -n 30 "build/campaign/$name.log"
  }
  grep -E 'stat::number_of_executed_units' "build/campaign/$name.log" || true
  # A small set of inputs that reaches the code that all of them reach; small inputs alone are kept with the sources.
  smallest=build/campaign/${name}_smallest
  rm -rf "$smallest"
  mkdir -p "$smallest"
  "$programs/$name" -merge=1 -use_counters=0 -max_len=2048 "$smallest" "$kept" "$found" "$seeds" 2>/dev/null
  find "$smallest" -type f -size +2k -delete
  rm -rf "$kept"
  mv "$smallest" "$kept"
  LLVM_PROFILE_FILE=build/campaign/$name.profraw "$programs/${name}_coverage" -runs=0 "$kept" "$seeds" 2>/dev/null
  llvm-profdata-14 merge -o "build/campaign/$name.profdata" "build/campaign/$name.profraw"
  llvm-cov-14 report "$programs/${name}_coverage" -instr-profile="build/campaign/$name.profdata" \
    -show-region-summary=0 -show-branch-summary=0 -ignore-filename-regex='/usr/|fuzz/|core/|include/' |
    tee "build/campaign/$name.coverage"
done
exit $status
