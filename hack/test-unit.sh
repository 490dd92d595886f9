#!/usr/bin/env bash
# Runs every test that needs no cluster and checks the statement coverage of what ships. The linters vet the code.
# Usage: test-unit.sh MINIMUM
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
runner=$(hack/tool.sh --path gotestsum)
failed=0
for module in . deployments test test/monitoring; do
  # With coverage, go test links a program also for a package without tests.
  packages=$(go -C "$module" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
  # With GOGC=400 tests that allocate much need a quarter less CPU time.
  # shellcheck disable=SC2086 # packages are words
  (cd "$module" && "$runner" --format pkgname-and-test-fails -- -count=1 -vet=off -timeout 20m -exec "env GOGC=400" \
    -coverprofile="$dir/one" \
    -coverpkg=gpu-dra-driver/pkg/...,gpu-dra-driver/internal/...,gpu-dra-driver/api/... $packages) || failed=1
  [ -s "$dir/one" ] || continue
  [ -e "$dir/all" ] || head -n 1 "$dir/one" >"$dir/all"
  tail -n +2 "$dir/one" >>"$dir/all"
  rm "$dir/one"
done
go tool cover -func="$dir/all" | awk -v least="$1" '/^total:/ {
  sub("%", "", $3)
  printf "statement coverage of pkg, internal and api: %s%% (at least %s%%)\n", $3, least
  exit ($3 + 0 < least + 0)
}' || failed=1
exit $failed
