#!/bin/sh
# Runs pods on this machine's GPU, on a Kubernetes of its own: one with the whole GPU, then two with shares. It changes no
# setting of the GPU and leaves nothing. Usage: run.sh [DRIVER-ROOT [PROC-ROOT [SYS-ROOT]]], as root. SIMULATED=yes: there is
# no CUDA.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-/usr/local/nvidia} proc=${2:-/proc} sys=${3:-/sys}
work=$(mktemp -d)
export GPU_DRA_CACHE="$here/cache" HOME="$work"
# settings prints the settings of the GPUs, by the driver's own program.
settings() {
  for smi in "$root/usr/bin/nvidia-smi" "$root/bin/nvidia-smi" "$(command -v nvidia-smi)"; do
    if [ -x "$smi" ]; then
      LD_LIBRARY_PATH=$root/lib64:$root/lib "$smi" --query-gpu=compute_mode,persistence_mode,mig.mode.current --format=csv
      return
    fi
  done
  echo "there is no nvidia-smi in $root/usr/bin, $root/bin and PATH: name the driver's root" >&2
  return 1
}
before=$(settings)
echo "$before"
down() {
  rc=$?
  trap '' INT TERM
  [ "$rc" -eq 0 ] || kubectl get pods,resourceclaims,events -A 2>&1 | tail -60 || true
  "$here/onenode" down --dir "$work/cluster" || true
  rm -rf "$work"
  exit "$rc"
}
trap down EXIT
trap 'exit 130' INT TERM
kubectl() { "$("$here/onenode" which kubectl)" "$@"; }
"$here/onenode" up --dir "$work/cluster" >"$work/env"
. "$work/env"
"$here/onenode" load --dir "$work/cluster" "$here"/*.tar
kubectl create namespace gpu-dra-driver
sed "s|/DRIVER-ROOT|$root|g; s|/PROC-ROOT|$proc|g; s|/SYS-ROOT|$sys|g" "$here/chart.yaml" | kubectl apply -f -
kubectl -n gpu-dra-driver wait --for condition=Ready pods --all --timeout 2m
for job in whole shares; do
  # The image has a C library, for the driver's programs.
  sed "s|/HERE|$here|g" "$here/$job.yaml" | kubectl apply -f -
  if ! kubectl wait --for condition=complete "job/$job" --timeout 2m; then
    kubectl describe pods
    kubectl logs --prefix --selector "batch.kubernetes.io/job-name=$job" || true
    exit 1
  fi
  kubectl logs --prefix --selector "batch.kubernetes.io/job-name=$job" | tee "$work/log"
  if [ "$job" = shares ] && [ "${SIMULATED:-no}" = no ] && [ "$(grep -c '"freeMiB"' "$work/log")" -lt 2 ]; then
    echo "CUDA did not compute in both shares" >&2
    exit 1
  fi
  kubectl delete --ignore-not-found -f "$here/$job.yaml"
done
if [ "$(settings)" != "$before" ]; then
  settings
  echo "the settings of the GPUs are others than before" >&2
  exit 1
fi
echo "pods with a whole GPU and with shares ran"
