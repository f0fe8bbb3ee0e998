#!/usr/bin/env bash
# The compiler itself keeps the modules apart: with the include directories of a module's target, a source that includes from
# a folder that the module may not include from fails to compile, and the folders that it may include from are found.
# usage: modules_test.sh COMPILER SOURCE_DIR MODULE=DIRECTORY:DIRECTORY... ...   (the include directories of each module's target)
set -euo pipefail
compiler=$1 source=$2
shift 2

# What each module may include besides its own headers and the public ones: the table of ARCHITECTURE.md.
declare -A may_include=(
  [core]="" [reference]="core" [cpu]="core" [cuda]="core" [dispatch]="core" [distributed]="core dispatch" [c_api]="core dispatch"
  [layers]="core dispatch" [models]="core dispatch layers" [lab]="core dispatch layers models"
  [models_api]="core dispatch c_api layers models lab"
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tried=0 failures=0
fail() {
  echo "$1"
  [ ! -s "$work/log" ] || cat "$work/log"
  failures=$((failures + 1))
}

for argument in "$@"; do
  module=${argument%%=*}
  [ -n "${may_include[$module]+known}" ] || { echo "$module is a module that this test does not know"; exit 1; }
  IFS=: read -ra directories <<<"${argument#*=}"
  compile=("$compiler" -std=c++20 -fsyntax-only "${directories[@]/#/-I}")

  # Headers may need more than the module to compile (CUDA's, for one); that they are found is what is asked.
  found=$work/found.cpp
  : >"$found"
  for folder in "$source"/src/*/; do
    folder=$(basename "$folder")
    header=$(cd "$source/src" && find "$folder" -name '*.h' | LC_ALL=C sort | head -n 1)
    [ -n "$header" ] || continue
    tried=$((tried + 1))
    if [[ " $module ${may_include[$module]} " == *" $folder "* ]]; then
      printf '#if !__has_include("%s")\n#error "not found"\n#endif\n' "$header" >>"$found"
    else
      printf '#include "%s"\n' "$header" >"$work/forbidden.cpp"
      if "${compile[@]}" "$work/forbidden.cpp" 2>"$work/log"; then
        fail "$module may not include $header, but it compiles"
      elif ! grep -q "$header" "$work/log"; then
        fail "$module: including $header fails for another reason"
      fi
    fi
  done
  "${compile[@]}" "$found" 2>"$work/log" || fail "$module does not find every folder that it may include from"
done
echo "$tried includes tried, $failures wrong"
[ "$tried" -ge 90 ] && [ "$failures" -eq 0 ]
