#!/usr/bin/env bash
# Runs the end-to-end tests on a cluster of their own. Usage: test-e2e.sh KUBERNETES [go test arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
shift
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- \
  hack/tool.sh gotestsum --format testname -- -p 1 -count=1 -timeout 40m -tags e2e "$@" ./test/e2e ./test/crash
