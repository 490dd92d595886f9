#!/usr/bin/env bash
# Runs everything that CI runs, in two lanes: the large end-to-end suite waits for Kubernetes most of its time, and the
# phases that compute run beside it, at a lower priority. Usage: test.sh KUBERNETES COVERAGE-MINIMUM
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/phases.sh
compute() {
  local rc=0
  phase lint nice hack/lint.sh || rc=1
  phase unit nice hack/test-unit.sh "$2" || rc=1
  phase cluster nice go -C test/cluster test -count=1 -timeout 15m ./... || rc=1
  hack/test-e2e.sh "$1" "" nodes reduced || rc=1
  return $rc
}
lane hack/test-e2e.sh "$1" "" main
lane compute "$@"
finish
