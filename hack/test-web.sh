#!/usr/bin/env bash
# Looks at the page of `kubectl gpu web` with headless Chromium: with simulated API servers, and with the one-machine cluster.
# It opens the site of make site too. Usage: test-web.sh KUBERNETES [go test arguments]
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/env.sh
. ../hack/child.sh
../hack/ci-packages.sh chromium:chromium >&2
version=$1
shift
go test -count=1 -v -tags "$TAGS,web" ./web "$@"
go test -count=1 -v -tags "$TAGS,web" -run Browser ./site
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
child ../bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- \
  go test -count=1 -v -timeout 20m -tags "$TAGS,web,e2e" -run '^TestCluster_' ./web
