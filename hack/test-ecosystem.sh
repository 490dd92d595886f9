#!/usr/bin/env bash
# Tests with other projects: Karpenter and Kueue as libraries, the gang scheduling of Kubernetes, and the managers of Kueue,
# JobSet, LeaderWorkerSet, Kubeflow's operators for PyTorch and MPI, KubeRay and KEDA. The cache keeps the managers.
# Usage: test-ecosystem.sh KUBERNETES [SUITE...]; SUITE is `libraries`, `gangs`, `kueue`, `recipes` or `inference`.
set -euo pipefail
cd "$(dirname "$0")/../test"
. ../hack/env.sh
. ../hack/child.sh
version=$1
shift
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT

# program NAME SOURCE PACKAGE [BUILD-FLAG...] builds a program of another project from its module, with the requirements and sums of
# that module, and prints its path.
program() {
  local name=$1 source=$2 package=$3
  shift 3
  local program=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}/${source##*/}/$name
  if [ ! -x "$program" ]; then
    CGO_ENABLED=0 GOFLAGS=-mod=readonly go -C "$source" build -trimpath "$@" -ldflags="-s -w" -o "$program.new" "$package" >&2
    mv "$program.new" "$program"
  fi
  echo "$program"
}

# manager NAME SOURCE MANIFESTS PACKAGE [BUILD-FLAG...] builds the manager of another project, for Env.InstallManager.
manager() {
  local name=$1 source=$2 manifests=$3 built
  shift 3
  built=$(program manager "$source" "$@")
  export "${name}_MANAGER=$built" "${name}_MANIFESTS=$source/$manifests"
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

# suite NAME LIMIT [ONENODE-ARGUMENT...] runs the tests of a package on a cluster; select are arguments of go test.
select=()
suite() {
  local name=$1 limit=$2
  shift 2
  child ../bin/onenode run --dir "$dir/$name" --kubernetes "$version" "$@" -- \
    go test -count=1 -timeout "$limit" -tags "$TAGS,e2e" "${select[@]}" "./e2e/$name"
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
  local jobset lws training mpi kuberay
  jobset=$(module sigs.k8s.io/jobset@v0.10.1 h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU=)
  lws=$(module sigs.k8s.io/lws@v0.7.0 h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=)
  training=$(module github.com/kubeflow/training-operator@v1.9.3 h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=)
  mpi=$(module github.com/kubeflow/mpi-operator@v0.6.0 h1:RzzG03oyQIiHe/SH2k19N+Hp4QkxEsG2l9G1T7US+ys=)
  kuberay=$(module github.com/ray-project/kuberay/ray-operator@v1.5.0 h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=)
  manager JOBSET "$jobset" config/default .
  manager LWS "$lws" config/default ./cmd
  manager TRAINING "$training" manifests/overlays/standalone ./cmd/training-operator.v1
  manager MPI "$mpi" manifests/overlays/standalone ./cmd/mpi-operator
  manager KUBERAY "$kuberay" config/default .
  suite recipes 25m
}
# The test is in the package of test-monitoring.sh, whose Prometheus and adapter it needs. KEDA's programs have the clients of
# every cloud, and take ten minutes to build.
inference() {
  local keda
  PROMETHEUS=$(../hack/tool.sh --path prometheus)
  PROMETHEUS_ADAPTER=$(../hack/tool.sh --path adapter)
  keda=$(module github.com/kedacore/keda/v2@v2.21.0 h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=)
  KEDA_OPERATOR=$(program keda "$keda" ./cmd/operator)
  KEDA_ADAPTER=$(program keda-adapter "$keda" ./cmd/adapter)
  KEDA_MANIFESTS=$keda/config/minimal
  export PROMETHEUS PROMETHEUS_ADAPTER KEDA_OPERATOR KEDA_ADAPTER KEDA_MANIFESTS
  local select=(-v -run '^TestInference_')
  suite monitoring 25m
}

[ $# -gt 0 ] || set -- libraries gangs kueue recipes inference
for one in "$@"; do "$one"; done
