#!/usr/bin/env bash
# Attention over ranks, as make check runs it: random calls on 2, 3, 4 and 8 processes over MPI and over gloo, each with
# the bits of one rank; a million keys over 4 processes; then ranks that are killed, 50 times over MPI, 16 times over gloo. Without MPI or PyTorch it says what it skips.
# usage: scripts/ranks.sh [CALLS [KILLS]]
set -euo pipefail
cd "$(dirname "$0")/.."
calls=${1:-60} kills=${2:-50}
python=${ROOTDK_PYTHON:-/usr/bin/python3}
seed=${ROOTDK_RANKS_SEED:-$((RANDOM * 1000))}

echo "== ranks: build"
scripts/build.sh release src/librootdk.so -DROOTDK_TESTS=ON  # the file: "rootdk" is the program
export PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 ROOTDK_LIBRARY=build/src/librootdk.so ROOTDK_THREADS=1
if command -v mpirun >/dev/null && grep -q '^MPI_C_HEADER_DIR:PATH=/' build/CMakeCache.txt; then
  scripts/build.sh release tests/mpi_ranks
  echo "== ranks: MPI, seed $seed"
  for ranks in 2 3 4 8; do
    tests/mpi/mpirun.sh mpirun "$ranks" build/tests/mpi_ranks --random "$calls" "$seed" | tail -n "$ranks" | sed 1q
  done
  tests/mpi/mpirun.sh mpirun 4 build/tests/mpi_ranks --long 1048576 512 | grep -v failures
  tests/mpi/survival.sh mpirun build/tests/mpi_ranks "$kills"
else
  echo "== ranks: MPI skipped (Debian: libopenmpi-dev openmpi-bin)"
fi
skips() { [ $? = 77 ]; }
echo "== ranks: gloo"
"$python" tests/python/ranks_grid.py --cases "$((calls / 2))" --seed "$seed" || skips
"$python" tests/python/ranks_survival.py --times "$((kills / 3))" || skips  # a start of PyTorch takes seconds
