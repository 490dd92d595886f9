#!/usr/bin/env bash
# Formatting, vet, linters, and whether generated files are what their generators write.
set -euo pipefail
cd "$(dirname "$0")/.."
unformatted=$(git ls-files -z '*.go' | xargs -0 gofmt -s -l)
if [ -n "$unformatted" ]; then
  echo "not formatted (run gofmt -s -w): $unformatted" >&2
  exit 1
fi
go vet ./...
go vet -tags e2e ./test/e2e/... ./test/crash
hack/tool.sh golangci-lint run ./...
for script in $(git ls-files '*.sh') .ci/run; do bash -n "$script"; done
hack/check-generated.sh
