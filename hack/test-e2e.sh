#!/usr/bin/env bash
# Runs the end-to-end tests on clusters of their own, two at a time. Usage: test-e2e.sh KUBERNETES [RUN]
# RUN selects tests as go test -run does; only the clusters that have one of them start.
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/phases.sh
version=$1 run=${2:-}
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
runner=$(../hack/tool.sh --path gotestsum)
# An API server without shared counters and shared devices drops them silently.
reduced=(--feature-gates DRAPartitionableDevices=false,DRAConsumableCapacity=false)

# cluster NAME [ONENODE-ARGUMENT...] -- PACKAGE [GO-TEST-ARGUMENT...] runs tests on a cluster of their own.
cluster() {
  local name=$1 arguments=()
  shift
  while [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  shift
  phase "$name" ../bin/onenode run --dir "$dir/$name" --kubernetes "$version" "${arguments[@]}" -- \
    "$runner" --format testname -- -count=1 -timeout 40m -tags e2e "$@"
}

# Most of their time the tests wait for Kubernetes, so that two clusters share the cores well. The second node of the
# cluster "nodes" is of another make, for what the controller does.
demos() {
  local rc=0
  cluster demos -- ./e2e -run '^TestDemos$' || rc=1
  cluster crash -- ./crash || rc=1
  cluster reduced "${reduced[@]}" -- ./e2e/reduced || rc=1
  return $rc
}
cases() {
  local rc=0
  cluster e2e -- ./e2e -skip '^TestDemos$' || rc=1
  cluster nodes --nodes 2 -- ./e2e/nodes || rc=1
  return $rc
}

# has PACKAGE reports whether RUN selects a test of the package.
has() {
  sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' "$1"/*_test.go | grep -v '^TestMain$' | grep -qE -- "${run%%/*}"
}
selected() {
  local rc=0 ran=
  if has ./e2e; then ran=1 && cluster e2e -- ./e2e -run "$run" || rc=1; fi
  if has ./crash; then ran=1 && cluster crash -- ./crash -run "$run" || rc=1; fi
  if has ./e2e/nodes; then ran=1 && cluster nodes --nodes 2 -- ./e2e/nodes -run "$run" || rc=1; fi
  if has ./e2e/reduced; then ran=1 && cluster reduced "${reduced[@]}" -- ./e2e/reduced -run "$run" || rc=1; fi
  [ -n "$ran" ] || { echo "no end-to-end test matches $run" >&2 && return 1; }
  return $rc
}

if [ -n "$run" ]; then
  lane selected
else
  lane demos
  lane cases
fi
finish
