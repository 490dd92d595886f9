#!/usr/bin/env bash
# Runs the unit tests of the product under the race detector. Usage: test-race.sh [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
[ $# -gt 0 ] || mapfile -t packages < <(hack/packages.sh . tested)
[ $# = 0 ] || packages=("$@")
runner=$(hack/tool.sh --path gotestsum)
# The detector needs C, and several times the processor time. Allocations cannot be counted under it.
CGO_ENABLED=1 exec "$runner" --format pkgname-and-test-fails --format-hide-empty-pkg -- -race -short -vet=off -count=1 -p 2 -timeout 30m "${packages[@]}"
