#!/usr/bin/env bash
# Runs the tests that need a control plane and no kubelet. Usage: test-scheduler.sh KUBERNETES [FLAG-OF-GO-TEST...]
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
report=()
[ -z "${PHASE_REPORT:-}" ] || report=(--jsonfile-timing-events "$PHASE_REPORT.json")
runner=$(hack/tool.sh --path gotestsum)
timed=$PWD/hack/timed.sh
cd test
export KUBERNETES=$1
shift
exec "$runner" --format testname "${report[@]}" -- -count=1 -vet=off -timeout 10m -tags "$TAGS,e2e" -exec "$timed" "$@" ./scheduling
