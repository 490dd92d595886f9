#!/usr/bin/env bash
# Plays every demo on a cluster of its own and leaves nothing behind. Usage: demo.sh KUBERNETES
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/child.sh
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
bin/demo check
child bin/onenode run --dir "$dir/cluster" --kubernetes "$1" -- bin/demo all
