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
# go vet is one of these linters. With -trimpath the build cache gives code that cgo generated in another checkout, with that
# checkout's file names, so packages with cgo are linted without it.
tags="e2e,hardware"
for module in $(hack/modules.sh); do
  mapfile -t plain < <(go -C "$module" list -tags "$tags" -f '{{if not .CgoFiles}}{{.Dir}}{{end}}' ./...)
  mapfile -t cgo < <(go -C "$module" list -tags "$tags" -f '{{if .CgoFiles}}{{.Dir}}{{end}}' ./...)
  (cd "$module" && "$linter" run --build-tags "$tags" "${plain[@]}")
  [ ${#cgo[@]} = 0 ] || (cd "$module" && GOFLAGS='' "$linter" run --build-tags "$tags" "${cgo[@]}")
done
for script in $(git ls-files '*.sh') .ci/run; do bash -n "$script"; done
hack/vale.sh
hack/check-generated.sh
