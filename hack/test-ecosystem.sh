#!/usr/bin/env bash
# Tests with other projects: Karpenter and Kueue as libraries, the gang scheduling of Kubernetes, and the managers of Kueue,
# JobSet, LeaderWorkerSet and Kubeflow's training operator. The cache keeps the managers.
# Usage: test-ecosystem.sh KUBERNETES [SUITE...]; SUITE is `libraries`, `gangs`, `kueue` or `recipes`.
set -euo pipefail
cd "$(dirname "$0")/../test"
version=$1
shift
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT

# manager NAME SOURCE MANIFESTS PACKAGE [BUILD-FLAG...] builds the manager of another project from its module, with the requirements
# and sums of that module. Env.InstallManager runs it with the manifests, a directory of the module.
manager() {
  local name=$1 source=$2 manifests=$3 package=$4
  shift 4
  local program=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}/${source##*/}/manager
  if [ ! -x "$program" ]; then
    CGO_ENABLED=0 GOFLAGS=-mod=readonly go -C "$source" build -trimpath "$@" -ldflags="-s -w" -o "$program.new" "$package"
    mv "$program.new" "$program"
  fi
  export "${name}_MANAGER=$program" "${name}_MANIFESTS=$source/$manifests"
}

# module MODULE@VERSION SUM downloads a module that no go.mod requires, and prints its directory.
module() {
  local downloaded
  downloaded=$(go -C / mod download -json "$1")
  if ! grep -qF "\"Sum\": \"$2\"" <<<"$downloaded"; then
    echo "$1 does not have the sum $2: $downloaded" >&2
    return 1
  fi
  field Dir <<<"$downloaded"
}

field() { sed -n 's/^\t"'"$1"'": "\(.*\)",$/\1/p'; }

# suite NAME LIMIT [ONENODE-ARGUMENT...] runs the tests of a package on a cluster.
suite() {
  local name=$1 limit=$2
  shift 2
  ../bin/onenode run --dir "$dir/$name" --kubernetes "$version" "$@" -- \
    go test -count=1 -timeout "$limit" -tags e2e "./e2e/$name"
}

libraries() { CGO_ENABLED=0 go -C ecosystem test -vet=off -count=1 ./...; }
gangs() {
  suite gangs 15m --feature-gates GenericWorkload=true,DRAWorkloadResourceClaims=true \
    --runtime-config scheduling.k8s.io/v1beta1=true
}
kueue() {
  local source
  source=$(go -C ecosystem mod download -json sigs.k8s.io/kueue | field Dir)
  manager KUEUE "$source" config/default ./cmd/kueue -tags exclude_scheduler_library
  suite kueue 20m
}
# Their modules require older versions of Kubernetes than test/ecosystem, so the versions are here.
recipes() {
  local jobset lws training
  jobset=$(module sigs.k8s.io/jobset@v0.10.1 h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU=)
  lws=$(module sigs.k8s.io/lws@v0.7.0 h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=)
  training=$(module github.com/kubeflow/training-operator@v1.9.3 h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=)
  manager JOBSET "$jobset" config/default .
  manager LWS "$lws" config/default ./cmd
  manager TRAINING "$training" manifests/overlays/standalone ./cmd/training-operator.v1
  suite recipes 25m
}

[ $# -gt 0 ] || set -- libraries gangs kueue recipes
for one in "$@"; do "$one"; done
