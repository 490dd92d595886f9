#!/usr/bin/env bash
# Tests with what reads the driver's objects beside the default Kubernetes: Karpenter and Kueue as libraries, the gang
# scheduling of Kubernetes, and the manager of Kueue. The cache keeps its program. Usage: test-ecosystem.sh KUBERNETES
set -euo pipefail
cd "$(dirname "$0")/../test"
CGO_ENABLED=0 go -C ecosystem test -vet=off -count=1 ./...
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
../bin/onenode run --dir "$dir/cluster" --kubernetes "$1" \
  --feature-gates GenericWorkload=true,DRAWorkloadResourceClaims=true --runtime-config scheduling.k8s.io/v1beta1=true -- \
  go test -count=1 -timeout 10m -tags e2e ./e2e/gangs

source=$(go -C ecosystem mod download -json sigs.k8s.io/kueue | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
export KUEUE_MANIFESTS=$source/config/default
export KUEUE_MANAGER=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}/${source##*/}/manager
if [ ! -x "$KUEUE_MANAGER" ]; then
  CGO_ENABLED=0 GOFLAGS=-mod=readonly go -C "$source" build -trimpath -tags exclude_scheduler_library -ldflags="-s -w" \
    -o "$KUEUE_MANAGER.new" ./cmd/kueue
  mv "$KUEUE_MANAGER.new" "$KUEUE_MANAGER"
fi
../bin/onenode run --dir "$dir/kueue" --kubernetes "$1" -- go test -count=1 -timeout 20m -tags e2e ./e2e/kueue
