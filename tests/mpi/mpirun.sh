#!/usr/bin/env bash
# Starts a program on ranks of this machine, whatever MPI is here. usage: mpirun.sh MPIEXEC RANKS PROGRAM [ARGUMENTS]
# Ranks that outlive one that died are counted by the word "ends with".
set -uo pipefail
mpiexec=$1 ranks=$2
shift 2
command -v "$mpiexec" >/dev/null || { echo "skipped: $mpiexec was not found (Debian: openmpi-bin)"; exit 77; }
flags=()
if "$mpiexec" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then
  flags=(--oversubscribe --allow-run-as-root --enable-recovery --mca btl self,vader,tcp --mca btl_vader_single_copy_mechanism none
    --mca orte_abort_on_non_zero_status 0)
fi
output=$("$mpiexec" "${flags[@]}" -n "$ranks" "$@" 2>&1)
status=$?
echo "$output"
case " $* " in
*" --die "*) echo "$(grep -c 'ends with' <<<"$output") of $((ranks - 1)) ranks got an error" ;;
*) exit $status ;;
esac
