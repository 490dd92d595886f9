#!/usr/bin/env bash
# Makes two releases in a registry on the one-machine Kubernetes, installs one from there, and upgrades to the other and back under
# pods. Usage: test-release.sh KUBERNETES
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/env.sh
. ../hack/child.sh
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o ../bin/registry ./registry
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
child ../bin/onenode run --dir "$dir/cluster" --kubernetes "$1" -- go test -count=1 -v -timeout 15m -tags "$TAGS,e2e" ./e2e/release
