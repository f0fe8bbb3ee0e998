#!/usr/bin/env bash
# Each kernel object exports its table function and nothing else: a weak symbol compiled for wide vectors could be taken
# by the linker for a caller on a processor that lacks them.
# usage: isolation_test.sh NM OBJECT...
set -euo pipefail
nm=$1
shift
found=0
for object in "$@"; do
  case $object in */targets/*) ;; *) continue ;; esac
  found=$((found + 1))
  target=$(basename "$object" | cut -d. -f1)
  exported=$("$nm" --extern-only --defined-only --demangle "$object" | cut -d' ' -f2-)
  case $target in
    decode_*) table=${target#decode_}_decode ;;
    linear_*) table=${target#linear_}_linear ;;
    *) table=${target}_kernels ;;
  esac
  if [ "$exported" != "T rootdk::cpu::$table()" ]; then
    echo "$object exports more than its table function:"
    echo "$exported"
    exit 1
  fi
done
[ "$found" -gt 0 ] || { echo "no kernel objects among the arguments"; exit 1; }
echo "$found kernel objects export their table function alone"
