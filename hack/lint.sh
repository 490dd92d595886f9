#!/usr/bin/env bash
# Formatting, vet, linters, prose, and drift of generated files.
set -euo pipefail
cd "$(dirname "$0")/.."
unformatted=$(git ls-files -z '*.go' | xargs -0 gofmt -s -l)
if [ -n "$unformatted" ]; then
  echo "not formatted (run gofmt -s -w): $unformatted" >&2
  exit 1
fi
linter=$(hack/tool.sh --path golangci-lint)
# go vet is one of these linters.
for module in $(hack/modules.sh); do (cd "$module" && "$linter" run --build-tags e2e,hardware ./...); done
for script in $(git ls-files '*.sh') .ci/run; do bash -n "$script"; done
hack/vale.sh
hack/check-generated.sh
