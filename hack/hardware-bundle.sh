#!/usr/bin/env bash
# Builds dist/hardware-bundle.tar.gz: checks of the driver on real GPUs, for a machine with NVIDIA's driver and glibc 2.34,
# without Go, network and Kubernetes. Usage: hardware-bundle.sh KUBERNETES DIST
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
dist=$2 name=hardware-bundle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/$name"
go -C test test -c -tags "$TAGS,hardware" -ldflags '-s -w' -o "$work/$name/hardware" ./hardware
cp "$(bin/onenode which runc --kubernetes "$1")" "$work/$name/runc"
cp "$dist/bin/$(go env GOARCH)/dra-kubelet-plugin/nvidia-cdi-hook" "$work/$name/"
cp test/hardware/run.sh "$work/$name/run.sh"
tar -C "$work" -czf "$dist/$name.tar.gz" "$name"
size=$(stat -c %s "$dist/$name.tar.gz")
echo "$dist/$name.tar.gz: $((size >> 20)) MiB; unpack it on the machine, and run $name/run.sh there as root"
# Some machines take uploads of 64 MiB at the most.
[ "$size" -le $((60 << 20)) ]
