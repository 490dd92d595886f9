#!/usr/bin/env bash
# Prints speed and memory of the shipped controller and plugin beside their floors. Usage: bench.sh KUBERNETES [bench arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/child.sh
version=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir/tmp"; rmdir "$dir" 2>/dev/null || true' EXIT
mkdir "$dir/tmp"
# The floor of a partition is measured by the plugin's own binding, which needs C.
CGO_ENABLED=1 go -C test build -trimpath -ldflags "-extldflags=-Wl,-z,lazy" -o ../bin/bench ./bench
# No Kubernetes runs beside the controller, whose API server is the benchmark's own.
CGO_ENABLED=0 go -C test build -trimpath -o ../bin/bench-controller ./bench/controller
TMPDIR="$dir/tmp" child bin/bench-controller -raw dist/bench
CGO_ENABLED=0 go -C test build -trimpath -o ../bin/bench-kubectl ./bench/kubectl
TMPDIR="$dir/tmp" child bin/bench-kubectl
child bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- bin/bench -raw dist/bench "$@"
# The Events on waiting pods, the search for victims and the live screen need no cluster.
go test -run '^$' -bench 'Keeper|Preempt/500$|Screen' -benchtime 1x ./pkg/cluster/podevents ./pkg/cluster/pack ./pkg/show/live
