#!/usr/bin/env bash
# Random configurations against the oracle of tests/campaign/, then coverage-guided fuzzing of the parsers.
# usage: scripts/campaign.sh check            20,000 configurations of a fresh seed
#        scripts/campaign.sh COUNT [SECONDS]  goes on with the campaign in build/campaign/ up to COUNT, then fuzzes each
#                                             parser for SECONDS (default 600)
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: campaign.sh check|COUNT [SECONDS]}
python=${ROOTDK_PYTHON:-/usr/bin/python3}

echo "== campaign: build"
scripts/build.sh release src/librootdk.so -DROOTDK_TESTS=ON  # the file: "rootdk" is the program
mkdir -p build/campaign
if [ "$what" = check ]; then
  echo "== campaign: run"
  # The time is a bound for slow machines: what was run by then counts, and the last line says how many that are.
  # ROOTDK_CAMPAIGN_SEED repeats the configurations of an earlier run.
  exec "$python" tests/campaign/campaign.py --count 20000 --seconds 600 ${ROOTDK_CAMPAIGN_SEED:+--seed "$ROOTDK_CAMPAIGN_SEED"}
fi

echo "== campaign: run"
status=0
"$python" tests/campaign/campaign.py --count "$what" --state build/campaign/state.json --table build/campaign/table ||
  status=$?
echo "== campaign: fuzz"
scripts/fuzz_corpus.sh "${2:-600}" || status=$?
exit $status
