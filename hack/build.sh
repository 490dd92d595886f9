#!/usr/bin/env bash
# Builds every binary into a directory, saying how far it is. Usage: build.sh BIN LDFLAGS
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1 ldflags=$2
mkdir -p "$bin"
steps=(
  "dra-kubelet-plugin|CGO_ENABLED=1 go build -trimpath -tags grpcnotrace -ldflags '$ldflags -extldflags=-Wl,-z,lazy' -o $bin/dra-kubelet-plugin ./cmd/dra-kubelet-plugin"
  "mps-supervisor|CGO_ENABLED=0 go build -trimpath -ldflags '$ldflags' -o $bin/mps-supervisor ./cmd/mps-supervisor"
  "dra-controller|CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '$ldflags' -o $bin/dra-controller ./cmd/dra-controller"
  "gpusim|CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $bin/gpusim ./sim/cmd/gpusim"
  "libnvidia-ml.so.1|CGO_ENABLED=1 go build -trimpath -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1' -o $bin/libnvidia-ml.so.1 ./sim/libnvidiaml && rm -f $bin/libnvidia-ml.so.h $bin/libnvidia-ml.h"
  "nvidia-smi|CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $bin/nvidia-smi ./sim/cmd/nvidia-smi"
  "onenode|go -C test/cluster build -trimpath -ldflags '-s -w' -o $bin/onenode ./cmd/onenode"
  "demo|CGO_ENABLED=0 go -C test build -trimpath -ldflags '-s -w' -o $bin/demo ./demo"
)
n=0
for step in "${steps[@]}"; do
  n=$((n + 1))
  began=$SECONDS
  printf '[%d/%d] build %-20s' "$n" "${#steps[@]}" "${step%%|*}" >&2
  (eval "${step#*|}")
  printf ' %3d s\n' "$((SECONDS - began))" >&2
done
