#!/usr/bin/env bash
# Runs the end-to-end tests on clusters of their own. Usage: test-e2e.sh KUBERNETES [go test arguments]
set -euo pipefail
cd "$(dirname "$0")/../test"
version=$1
shift
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
tests=(../hack/tool.sh gotestsum --format testname -- -p 1 -count=1 -timeout 40m -tags e2e "$@")
../bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- "${tests[@]}" ./e2e ./crash
# Two nodes of different make, for what the controller does.
../bin/onenode run --dir "$dir/cluster" --kubernetes "$version" --nodes 2 -- "${tests[@]}" ./e2e/nodes
# An API server without shared counters and shared devices drops them silently.
../bin/onenode run --dir "$dir/cluster" --kubernetes "$version" --feature-gates DRAPartitionableDevices=false,DRAConsumableCapacity=false -- \
  "${tests[@]}" ./e2e/reduced
