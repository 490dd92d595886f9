#!/usr/bin/env bash
# Runs the end-to-end suites, one after another, each on a cluster of its own. Usage: test-e2e.sh KUBERNETES [RUN [SUITE...]]
# RUN selects tests as go test -run does; a suite without such a test starts no cluster.
# SUITE is main, nodes, server, reduced or simulator, a half of main, main/1 or main/2, or one for which a change does not wait:
# night, earlier, moved, recording.
# The variable FLAGS has flags of the tests, such as -update. BUILT=1
# takes the test programs that an earlier call with the suite `build` wrote into bin/tests.
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/env.sh
. ../hack/child.sh
version=$1 run=${2:-}
shift $(($# < 2 ? $# : 2))
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
runner=$(../hack/tool.sh --path gotestsum)
bin=$(cd .. && pwd)/bin
ran='' failed=0

# build compiles the tests of packages before a cluster waits for them. The linters vet the code.
build() {
  [ -z "${BUILT:-}" ] || return 0
  go test -c -vet=off -tags "$TAGS,e2e" -o "$bin/tests/" "$@"
  # `go tool test2json` would give the tests variables that name this module, in which they then look for other modules' tools.
  go build -o "$bin/test2json" cmd/test2json
}

# suite NAME PACKAGES FLAGS [ONENODE-ARGUMENT...] runs the tests of some packages on a cluster. FLAGS select tests.
suite() {
  local name=$1 packages=$2 select=$3 report=() each
  shift 3
  if [ -n "$run" ]; then
    select=-test.run=$run
    # shellcheck disable=SC2086 # packages are words
    for p in $packages; do cat "$p"/*_test.go; done | sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' |
      grep -v '^TestMain$' | grep -qE -- "$(sed 's,/[^|]*,,g' <<<"$run")" || return 0
  fi
  ran=1
  # shellcheck disable=SC2086
  build $packages
  [ -z "${PHASE_REPORT:-}" ] || report=(--jsonfile-timing-events "$PHASE_REPORT.json")
  # The first failed test ends its package, unless all are wanted.
  read -ra each <<<"-test.v=test2json -test.timeout=60m -test.parallel=4 $select ${FLAGS:-}"
  [ -n "${KEEP_GOING:-}" ] || each+=(-test.failfast)
  # shellcheck disable=SC2016 # the inner shell expands them
  child "$bin/onenode" run --dir "$dir/$name" --kubernetes "$version" "$@" -- \
    "$runner" --format testname "${report[@]}" --raw-command -- bash -c '
      packages=$1 bin=$2 failed=0
      shift 2
      for p in $packages; do
        (cd "$p" && "$bin/../test2json" -t -p "gpu-dra-driver/test/${p#./}" "$bin/${p##*/}.test" "$@") || failed=1
        [ $failed = 0 ] || [ -n "${KEEP_GOING:-}" ] || break
      done
      exit $failed' suite "$packages" "$bin/tests" "${each[@]}" || failed=1
}
# Parts of the package e2e, each on a cluster of its own, take about as long: times.txt lists what the tests take.
parts=2
# Tests for which a change does not wait: of each mechanism the most important ones stay.
night=$(cd .. && go run ./hack/phases night test/e2e/times.txt)
earlier='TestPlugin_EarlierRelease' moved='TestMigration_|TestSpotNode_'
main() {
  local skip=$earlier select=
  if [ $# != 0 ]; then
    skip="$earlier|$night"
    select=-test.run=$(cd .. && go run ./hack/phases deal test/e2e/times.txt "$1" $parts "$skip")
  fi
  suite "main$*" ./e2e "-test.skip=$skip $select"
}
night() { suite night ./e2e "-test.run=$night"; }
# The second node is of another make, for what the controller does. Its kubelets keep their own intervals.
nodes() { suite nodes ./e2e/nodes "-test.skip=$moved" --nodes 2 --sync-frequency 0; }
# Tests that need an API server and no driver on it.
server() { suite server "./e2e/values ./crash" ''; }
# An API server without shared counters and shared devices drops them silently.
reduced() { suite reduced ./e2e/reduced '' --feature-gates DRAPartitionableDevices=false,DRAConsumableCapacity=false; }
# Two nodes without boards, which the simulator's chart brings.
simulator() { suite simulator ./e2e/simulator '' --nodes 2; }
# An earlier release, which is built first.
earlier() { suite earlier ./e2e "-test.run=$earlier" && skew; }
skew() { suite skew ./skew ''; }
# Migration to NVIDIA's driver and back, a node that goes.
moved() { suite moved ./e2e/nodes "-test.run=$moved" --nodes 2; }
recording() { suite recording ./e2e/recording ''; }

if [ "${1:-}" = build ]; then
  build ./e2e ./e2e/nodes ./e2e/values ./e2e/reduced ./e2e/simulator ./crash
  exit
fi
if [ $# = 0 ]; then
  set -- main nodes server reduced simulator
  [ -z "$run" ] || set -- "$@" skew recording
fi
for s; do
  # shellcheck disable=SC2086 # a part is an argument
  ${s/\// }
  [ $failed = 0 ] || [ -n "${KEEP_GOING:-}" ] || break
done
[ -n "$ran" ] || { echo "no end-to-end test of these suites matches $run" >&2 && failed=1; }
exit $failed
