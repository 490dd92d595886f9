#!/usr/bin/env bash
# Runs every test that needs no cluster and checks the statement coverage of what ships. Usage: test-unit.sh MINIMUM
set -euo pipefail
cd "$(dirname "$0")/.."
profile=$(mktemp)
trap 'rm -f "$profile"' EXIT
hack/tool.sh gotestsum --format pkgname-and-test-fails -- -count=1 -timeout 20m \
  -coverprofile="$profile" -coverpkg=./pkg/...,./internal/...,./api/... ./...
go tool cover -func="$profile" | awk -v least="$1" '/^total:/ {
  sub("%", "", $3)
  printf "statement coverage of pkg, internal and api: %s%% (at least %s%%)\n", $3, least
  exit ($3 + 0 < least + 0)
}'
