#!/usr/bin/env bash
# Measures the claims that train or take times, which the live page plays instead of running: web/built/claims.json.
# usage: scripts/record_claims.sh   (after make test, which builds live_native; about ten minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
for id in 8 9 16 20 21 22 24 26 27; do echo "{\"do\": \"claim\", \"id\": $id, \"seed\": 1, \"quick\": ${QUICK:-false}}"; done |
  build/tests/live_native | python3 -c '
import json, sys
print(json.dumps([json.loads(line) for line in sys.stdin], ensure_ascii=False, indent=0))' >web/built/claims.json.new
mv web/built/claims.json.new web/built/claims.json
