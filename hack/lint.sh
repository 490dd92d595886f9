#!/usr/bin/env bash
# Formatting, vet, linters, prose, and drift of generated files.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
unformatted=$(git ls-files -z '*.go' | xargs -0 gofmt -s -l)
if [ -n "$unformatted" ]; then
  echo "not formatted (run gofmt -s -w): $unformatted" >&2
  exit 1
fi
# passed WHAT PATH... reports whether WHAT has passed on this machine for the same files below the paths, with the same linters. A
# file in the cache stands for that; pass makes it.
passed() {
  local sum
  sum=$({ echo "$1" "$(go env GOVERSION)" && shift && git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" tools hack/lint.sh .golangci.yml |
    xargs -0 sha256sum 2>/dev/null || true; } | sha256sum | cut -c1-32)
  stamp=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}/passed/$sum
  [ -e "$stamp" ]
}
pass() { mkdir -p "${stamp%/*}" && touch "$stamp"; }

# go vet is one of these linters. With -trimpath the build cache gives code that cgo generated in another checkout, with that
# checkout's file names, so packages with cgo are linted without it. Modules beside the product import it.
tags="$TAGS,e2e,hardware,web,exits"
linter=
for module in $(hack/modules.sh); do
  sources=(':(glob)**/*.go' ':(glob)**/go.mod' ':(glob)**/go.sum')
  [ "$module" != . ] || sources+=(':!test' ':!deployments')
  ! passed "lint $module" "${sources[@]}" || continue
  [ -n "$linter" ] || linter=$(hack/tool.sh --path golangci-lint)
  mapfile -t plain < <(go -C "$module" list -tags "$tags" -f '{{if not .CgoFiles}}{{.Dir}}{{end}}' ./...)
  mapfile -t cgo < <(go -C "$module" list -tags "$tags" -f '{{if .CgoFiles}}{{.Dir}}{{end}}' ./...)
  (cd "$module" && "$linter" run --build-tags "$tags" "${plain[@]}")
  [ ${#cgo[@]} = 0 ] || (cd "$module" && GOFLAGS='' "$linter" run --build-tags "$tags" "${cgo[@]}")
  pass
done
# Code with system calls must build for the other architecture of the images too. This part needs no C compiler.
GOARCH=arm64 CGO_ENABLED=0 go build ./internal/host ./cmd/mps-supervisor
# The programs without each feature that ends one day. These compilations cost as much as many tests.
if ! passed exits ':(glob)**/*.go' ':(glob)**/go.mod' docs/design/exits.md ':!test' ':!deployments'; then
  go test -tags "$TAGS,exits" -run Tags ./hack/exits
  pass
fi
for script in $(git ls-files '*.sh') .ci/run; do bash -n "$script"; done
# The chart, with all that is off by default because a cluster can lack it. No limits of CPU and ephemeral storage: the first
# would delay reviews, and the second needs a resource that nodes can lack, while no pod writes files. Images have
# versions as tags, so pods may start without the registry. The templates name the findings of single pods.
chart=deployments/helm/gpu-dra-driver
if ! passed chart "$chart" deployments/helm/testdata/schemas; then
  values=image.registry=registry.example.com,networkPolicies.enabled=true
  hack/tool.sh helm lint --strict --quiet "$chart" --set "$values"
  manifests=$(hack/tool.sh helm template gpu-dra-driver "$chart" --namespace gpu-dra-driver --set "$values")
  hack/tool.sh kubeconform -strict \
    -schema-location 'deployments/helm/testdata/schemas/{{.ResourceKind}}{{.KindSuffix}}.json' <<<"$manifests"
  scores=$(hack/tool.sh kube-score score --output-format ci --ignore-container-cpu-limit \
    --ignore-test container-ephemeral-storage-request-and-limit --ignore-test container-image-pull-policy - <<<"$manifests") ||
    { grep CRITICAL <<<"$scores" >&2; exit 1; }
  pass
fi
go run ./hack/size
hack/vale.sh
if ! passed generated .; then
  hack/check-generated.sh gating
  pass
fi
