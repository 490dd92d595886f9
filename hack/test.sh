#!/usr/bin/env bash
# Runs everything that CI runs: what computes beside what waits for clusters. Usage: test.sh KUBERNETES COVERAGE-MINIMUM
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/phases.sh
compute() {
  local rc=0
  phase lint hack/lint.sh || rc=1
  phase unit hack/test-unit.sh "$1" || rc=1
  phase cluster go -C test/cluster test -count=1 -timeout 15m ./... || rc=1
  return $rc
}
lane hack/test-e2e.sh "$1"
lane compute "$2"
finish
