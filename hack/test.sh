#!/usr/bin/env bash
# Runs everything that CI runs, in three lanes. The end-to-end suites mostly wait for Kubernetes; the other phases
# compute at the same time, at a lower priority. Usage: test.sh KUBERNETES COVERAGE-MINIMUM
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/phases.sh
compute() {
  local rc=0
  phase lint nice hack/lint.sh || rc=1
  phase unit nice hack/test-unit.sh "$2" || rc=1
  KUBERNETES=$1 phase scheduler nice go -C test test -count=1 -vet=off -timeout 10m -tags e2e ./scheduling || rc=1
  phase bundle nice hack/test-bundle.sh "$1" dist || rc=1
  phase cluster nice go -C test/cluster test -count=1 -timeout 15m ./... || rc=1
  return $rc
}
lane hack/test-e2e.sh "$1" "" main reduced simulator
lane hack/test-e2e.sh "$1" "" plugin nodes
lane compute "$@"
finish
