#!/usr/bin/env bash
# Runs the end-to-end suites, each on a cluster of its own. Usage: test-e2e.sh KUBERNETES [RUN [SUITE...]]
# RUN selects tests as go test -run does; a suite without such a test starts no cluster.
# SUITE is main, plugin, nodes, reduced or simulator. The variable FLAGS has flags of the tests, such as -update.
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/phases.sh
version=$1 run=${2:-}
shift $(($# < 2 ? $# : 2))
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
runner=$(../hack/tool.sh --path gotestsum)
ran=

# suite NAME PACKAGES [ONENODE-ARGUMENT...] runs the tests of some packages on a cluster; select are arguments of go test.
suite() {
  local name=$1 packages=$2
  shift 2
  if [ -n "$run" ]; then
    # shellcheck disable=SC2086 # packages are words
    for p in $packages; do cat "$p"/*_test.go; done | sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' |
      grep -v '^TestMain$' | grep -qE -- "$(sed 's,/[^|]*,,g' <<<"$run")" || return 0
  fi
  ran=1
  # shellcheck disable=SC2086
  phase "e2e-$name" ../bin/onenode run --dir "$dir/$name" --kubernetes "$version" "$@" -- \
    "$runner" --format testname -- -p 1 -count=1 -timeout 60m -tags e2e "${select[@]}" $packages ${FLAGS:-}
}
# The package e2e mostly waits, so two suites share its tests, each with a cluster of its own. One suite runs what the
# other one skips; a RUN is for the first.
of_plugin='^Test(CDISpecs|ClaimStatus|Groups|Health|Metrics|Partitions|Plugin|Pod|Slices)_'
select=(-run "${run:-.}")
main() { [ -n "$run" ] || local select=(-skip "$of_plugin") && suite main ./e2e; }
plugin() { [ -n "$run" ] || { local select=(-run "$of_plugin") && suite plugin ./e2e; }; }
# The second node is of another make, for what the controller does. The tests of crashes and of earlier releases need an API
# server only.
nodes() { suite nodes "./e2e/nodes ./crash ./skew" --nodes 2; }
# An API server without shared counters and shared devices drops them silently.
reduced() { suite reduced ./e2e/reduced --feature-gates DRAPartitionableDevices=false,DRAConsumableCapacity=false; }
# Two nodes without boards, which the simulator's chart brings.
simulator() { suite simulator ./e2e/simulator --nodes 2; }

suites() {
  local rc=0
  for s in "${@:-main plugin nodes reduced simulator}"; do
    for one in $s; do "$one" || rc=1; done
  done
  [ -n "$ran" ] || { echo "no end-to-end test of test/e2e, nodes, reduced, simulator, test/crash or test/skew matches $run" >&2 && rc=1; }
  return $rc
}
lane suites "$@"
finish
