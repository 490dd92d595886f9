#!/usr/bin/env bash
# Prints speed and memory of the shipped plugin beside their floors. Usage: bench.sh KUBERNETES [bench arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
shift
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench
bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- bin/bench -raw dist/bench "$@"
