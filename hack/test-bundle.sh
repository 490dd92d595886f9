#!/usr/bin/env bash
# Runs the hardware bundle, and pods on the cluster for other machines, over a simulated H200, where there is no Go. Usage:
# test-bundle.sh KUBERNETES DIST
set -euo pipefail
cd "$(dirname "$0")/.."
hack/hardware-bundle.sh "$1" "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$2/hardware-bundle.tar.gz"
machine=$work/machine
bin/gpusim up --profile hgx-h200 --root "$machine" >"$work/log"
kubelet=$(bin/onenode which kubelet --kubernetes "$1")
hidden="$(go env GOROOT) $(go env GOMODCACHE) ${kubelet%/*/bin/kubelet}"
# away runs a command where none of these directories is.
away() {
  unshare --mount --propagation private sh -c 'for d in $1; do mount -t tmpfs none "$d"; done; shift; exec "$@"' sh "$hidden" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
away "$work/hardware-bundle/run.sh" "$work/out" -driver-root "$machine" -dev-root "$machine" -proc-root "$machine/proc" -sys-root "$machine/sys"
# It found the GPUs, and wrote what it saw.
grep -q '"nvml.persistence": 1' "$work/out/facts.json"
[ "$(wc -l <"$work/out/fixtures/nvidia-smi-L.txt")" -ge 1 ]
hack/hardware-cluster.sh "$1" "$2"
cat "$2"/hardware-cluster/part-* | tar -C "$work" -xz
away SIMULATED=yes "$work/hardware-cluster/run.sh" "$machine" "$machine/proc" "$machine/sys"
