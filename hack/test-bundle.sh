#!/usr/bin/env bash
# Runs the hardware bundle over a simulated H200, where there is no Go. Usage: test-bundle.sh KUBERNETES DIST
set -euo pipefail
cd "$(dirname "$0")/.."
hack/hardware-bundle.sh "$1" "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$2/hardware-bundle.tar.gz"
machine=$work/machine
bin/gpusim up --profile hgx-h200 --root "$machine" >"$work/log"
goroot=$(go env GOROOT)
unshare --mount --propagation private sh -c 'mount -t tmpfs none "$1"; shift; exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' sh "$goroot" \
  "$work/hardware-bundle/run.sh" "$work/out" -driver-root "$machine" -dev-root "$machine" -proc-root "$machine/proc" -sys-root "$machine/sys"
# It found the GPUs, and wrote what it saw.
grep -q '"nvml.persistence": 1' "$work/out/facts.json"
[ "$(wc -l <"$work/out/fixtures/nvidia-smi-L.txt")" -ge 1 ]
