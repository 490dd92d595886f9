#!/usr/bin/env bash
# Tests with what reads the driver's objects beside the default Kubernetes: Karpenter and Kueue as libraries, and the gang
# scheduling of Kubernetes. Usage: test-ecosystem.sh KUBERNETES
set -euo pipefail
cd "$(dirname "$0")/../test"
CGO_ENABLED=0 go -C ecosystem test -vet=off -count=1 ./...
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
../bin/onenode run --dir "$dir/cluster" --kubernetes "$1" \
  --feature-gates GenericWorkload=true,DRAWorkloadResourceClaims=true --runtime-config scheduling.k8s.io/v1beta1=true -- \
  go test -count=1 -timeout 10m -tags e2e ./e2e/gangs
