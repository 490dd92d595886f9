#!/usr/bin/env bash
# Builds every binary into a directory and shows how far it is. Usage: build.sh BIN LDFLAGS
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
bin=$1 ldflags=$2
mkdir -p "$bin"
go -C test/cluster build -trimpath -o "$bin/gobuild" ./cmd/gobuild
n=0
# build CGO MODULE NAME [BUILD-FLAG...] PACKAGE
build() {
  local cgo=$1 module=$2 name=$3
  shift 3
  n=$((n + 1))
  (cd "$module" && CGO_ENABLED=$cgo "$bin/gobuild" "[$n/10] $name" "$bin/$name" -trimpath -buildvcs=false "$@")
}
build 1 . dra-kubelet-plugin -ldflags "$ldflags -extldflags=-Wl,-z,lazy" ./cmd/dra-kubelet-plugin
build 0 . mps-supervisor -ldflags "$ldflags" ./cmd/mps-supervisor
build 0 . dra-controller -ldflags "$ldflags" ./cmd/dra-controller
build 0 . kubectl-gpu -ldflags "$ldflags" ./cmd/kubectl-gpu
build 0 . gpusim -ldflags "-s -w" ./sim/cmd/gpusim
build 1 . libnvidia-ml.so.1 -buildmode=c-shared -ldflags "-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1" ./sim/libnvidiaml
rm -f "$bin"/libnvidia-ml.so.h "$bin"/libnvidia-ml.h
build 0 . nvidia-smi -ldflags "-s -w" ./sim/cmd/nvidia-smi
build 1 test/cluster onenode -ldflags "-s -w" ./cmd/onenode
build 0 test/cluster kindhost -ldflags "-s -w" ./cmd/kindhost
build 0 test demo -ldflags "-s -w" ./demo
