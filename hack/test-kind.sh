#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# The driver on a real kind cluster, on a Debian machine without a registry. Steps: demo/kind/kind.sh up, the chart's test,
# the demos with their faults, a reboot of the node, down. Prints a table of times. Usage: test-kind.sh KUBERNETES [DEMO...]
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh

# step NAME COMMAND... runs a command, and writes its time into the table. Its output has the name before each line.
step() {
	local name=$1 began=$EPOCHREALTIME result=ok
	shift
	"$@" 2>&1 | sed -u "s/^/$name: /" || result=failed
	awk -v n="$name" -v b="$began" -v e="$EPOCHREALTIME" -v r="$result" \
		'BEGIN {printf "%-12s %6.1f s  %s\n", n, e - b, r}' >>"$TIMES"
	[ $result = ok ]
}

# End-to-end tests that run on the kind cluster. TESTS replaces them. These pass too, in three minutes more:
# TESTS='TestDemos/gpu-fault|gpu-lost|program-fault', TESTS=TestPlugin_NodeReboots
tests=${TESTS:-TestPartitions_NodeReboots_CreatedAgain}

# inside runs the steps with the Docker and kind of kindhost, which ends them when they are interrupted.
inside() {
	local dir=$1 e2e=$2
	shift 2
	step up kind_up
	step helm-test hack/tool.sh helm test gpu-dra-driver --namespace gpu-dra-driver
	step demos demo/kind/kind.sh run "$@"
	export CLUSTER=gpu-demo ONENODE=demo/kind/node.sh ONENODE_DIR=$dir SIMULATOR=chart
	# The tests install the driver again, with other settings.
	step uninstall hack/tool.sh helm uninstall gpu-dra-driver --namespace gpu-dra-driver --wait
	step tests e2e "$e2e" "$tests"
	step down demo/kind/kind.sh down
}
kind_up() {
	mkdir "$DRIVER_ROOT"
	demo/kind/kind.sh up
}
e2e() { (cd test/e2e && "$1" -test.v -test.timeout 15m -test.run "$2"); }

if [ "$1" = --inside ]; then
	shift
	inside "$@"
	exit
fi
version=$1
shift
dir=$(mktemp -d)
export TIMES=$dir/times DRIVER_ROOT=$dir/host/driver
finish() {
	local rc=$?
	trap '' INT TERM
	[ ! -s "$TIMES" ] || printf '\nsteps, %d s together:\n%s\n' "$SECONDS" "$(cat "$TIMES")" >&2
	rm -rf "$dir"
	exit "$rc"
}
trap finish EXIT
. hack/child.sh
step node-image bin/kindhost build --kubernetes "$version"
# The steps have no network, so their programs are built here.
step programs hack/tool.sh --path helm
step e2e.test go -C test test -c -tags "$TAGS,e2e" -o "$dir/e2e.test" ./e2e
child bin/kindhost run --dir "$dir/host" --kubernetes "$version" -- hack/test-kind.sh --inside "$dir/host" "$dir/e2e.test" "$@"
