#!/usr/bin/env bash
# Builds dist/hardware-cluster/: a Kubernetes of one node with the images and the chart, for a machine with GPUs that has
# neither Go nor network, in parts of 45 MiB. Usage: hardware-cluster.sh KUBERNETES DIST
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
kubernetes=$1 dist=$2 name=hardware-cluster
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
all=$work/$name
mkdir -p "$all/cache"
for program in kubelet etcd containerd runc bridge pause; do
  built=$(dirname "$(dirname "$(bin/onenode which "$program" --kubernetes "$kubernetes")")")
  mkdir -p "$all/cache/$(basename "$built")"
  cp -r "$built/bin" "$all/cache/$(basename "$built")/"
  cache=$(dirname "$built")
done
# The versions of the Kubernetes modules, and the node's own runtime.
cp "$cache/kubernetes-$kubernetes.mod" "$all/cache/"
cp -r "$cache"/runtime-* "$all/cache/"
go -C test test -c -tags "$TAGS,hardware" -ldflags '-s -w' -o "$all/hardware" ./hardware
cp bin/onenode test/hardware/cluster/run.sh test/hardware/cluster/*.yaml "$dist"/*.tar "$all/"
# On one GPU whose settings stay as they are, MPS works without a compute mode. No certificate is needed without webhook.
hack/tool.sh helm template gpu-dra-driver deployments/helm/gpu-dra-driver --namespace gpu-dra-driver --no-hooks \
  --api-versions resource.k8s.io/v1/DeviceClass --kube-version "$kubernetes" \
  --set nvidiaDriverRoot=/DRIVER-ROOT,image.pullPolicy=Never,mps.keepComputeMode=true,webhook.enabled=false \
  --set kubeletPlugin.hostProcRoot=/PROC-ROOT,kubeletPlugin.hostSysRoot=/SYS-ROOT,kubeletPlugin.driverRootReadOnly=false \
  --set-json kubeletPlugin.affinity=null >"$all/chart.yaml"
rm -rf "${dist:?}/$name"
mkdir "$dist/$name"
tar -C "$work" -cz "$name" | split -b 45M -d - "$dist/$name/part-"
cat <<EOF
$(du -sh "$dist/$name" | cut -f1) in $(ls "$dist/$name" | wc -l) parts; on the machine, as root:
cat part-* | tar -xz && $name/run.sh
EOF
