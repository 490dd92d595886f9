#!/bin/sh
# Runs pods on this machine's GPU, on a Kubernetes of its own. Some have the whole GPU. Others have shares, and compute while a
# process faults and while pods of the driver are killed. It changes no setting of the GPU and leaves nothing.
# Usage: run.sh [DRIVER-ROOT [PROC-ROOT [SYS-ROOT]]], as root. SIMULATED=yes: there is no CUDA.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-/usr/local/nvidia} proc=${2:-/proc} sys=${3:-/sys}
work=$(mktemp -d)
export GPU_DRA_CACHE="$here/cache" HOME="$work"
# query asks the driver's own program.
query() {
  for smi in "$root/usr/bin/nvidia-smi" "$root/bin/nvidia-smi" "$(command -v nvidia-smi)"; do
    if [ -x "$smi" ]; then
      LD_LIBRARY_PATH=$root/lib64:$root/lib "$smi" "$1" --format=csv,noheader
      return
    fi
  done
  echo "there is no nvidia-smi in $root/usr/bin, $root/bin and PATH: name the driver's root" >&2
  return 1
}
settings() { query --query-gpu=compute_mode,persistence_mode,mig.mode.current; }
processes() { query --query-compute-apps=pid,process_name,used_memory; }
before=$(settings)
echo "$before"
down() {
  rc=$?
  trap '' INT TERM
  if [ "$rc" -ne 0 ]; then
    kubectl get pods,resourceclaims,events -A 2>&1 | tail -60 || true
    kubectl -n gpu-dra-driver logs --prefix --all-containers --tail 40 --selector app.kubernetes.io/name=gpu-dra-driver || true
    tail -n 15 "$work"/cluster/logs/* || true
  fi
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
real() { [ "${SIMULATED:-no}" = no ]; }
millis() { echo $(($(date +%s%N) / 1000000)); }
# Each step prints the time since its begin, and what its pods printed.
step() {
  now=$(millis)
  echo "$((now - began)) ms: $*"
}
submit() { # MANIFEST
  began=$(millis)
  # The image has a C library, for the driver's programs.
  sed "s|/HERE|$here|g" "$here/$1.yaml" | kubectl apply -f - >/dev/null
}
compute() { # NAME PODS WORK
  began=$(millis)
  sed "s|/HERE|$here|g; s|NAME|$1|g; s|PODS|$2|g; s|WORK|$3|g" "$here/shares.yaml" | kubectl apply -f - >/dev/null
}
pods() { echo "batch.kubernetes.io/job-name=$1"; }
# complete waits for a job, and leaves its output in $work/log.
complete() {
  if ! kubectl wait --for condition=complete "job/$1" --timeout 2m >/dev/null; then
    kubectl describe pods
    kubectl logs --prefix --selector "$(pods "$1")" || true
    exit 1
  fi
  kubectl logs --selector "$(pods "$1")" >"$work/log"
  step "$1 is complete: $(tr '\n' ' ' <"$work/log")"
}
# each fails unless so many pods printed the words.
each() { # NUMBER WORDS
  if real && [ "$(grep -c "$2" "$work/log")" -ne "$1" ]; then
    echo "$1 pods had to print $2, and printed: $(cat "$work/log")" >&2
    exit 1
  fi
}
remove() { kubectl delete --ignore-not-found "job/$1" "resourceclaimtemplate/$1" >/dev/null; }
# busy starts two pods that compute for some seconds, and waits until they run.
busy() { # NAME
  compute "$1" 2 '{"mib": 1024, "seconds": 15}'
  kubectl wait --for condition=Ready pods --selector "$(pods "$1")" --timeout 1m >/dev/null
  step "$1 runs"
}
# end kills a pod of the driver at once, and waits for its successor.
end() { # COMPONENT
  all="get pods --selector app.kubernetes.io/component=$1 --output name"
  # shellcheck disable=SC2086 # The words of a command.
  ended=$(kubectl -n gpu-dra-driver $all)
  kubectl -n gpu-dra-driver delete "$ended" --grace-period 0 --force >/dev/null 2>&1
  tries=0
  # shellcheck disable=SC2086
  until next=$(kubectl -n gpu-dra-driver $all | grep -v "^$ended$"); do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ]
    sleep 0.2
  done
  kubectl -n gpu-dra-driver wait --for condition=Ready "$next" --timeout 1m >/dev/null
  step "the pod of $1 was killed and is ready again"
}

for job in whole extended; do
  submit "$job"
  complete "$job"
  each 1 '^GPU 0: '
  remove "$job"
done
# A process gets no more than its share of 8 GiB.
compute limits 2 '{"mib": 16384}'
complete limits
each 2 '"mib":[67][0-9][0-9][0-9],'
remove limits
# Work goes on without the plugin, and a pod of that time gets its share.
busy alone
end kubelet-plugin
compute late 1 '{"mib": 1024}'
complete late
each 1 '"freeMiB"'
complete alone
each 2 '"kernels":[0-9][0-9]'
remove late
remove alone
# A fault ends the work of all shares of a GPU, as MPS has it. The next pod works.
busy others
compute faulty 1 '{"mib": 64, "seconds": 1, "kernel": "fault"}'
complete faulty
complete others
compute healed 1 '{"mib": 1024}'
complete healed
each 1 '"freeMiB"'
remove others
remove faulty
remove healed
# The daemons end with the supervisor's pod. The next pod works.
busy bereft
end mps-supervisor
compute again 1 '{"mib": 1024}'
complete again
each 1 '"freeMiB"'
complete bereft
remove again
remove bereft
# The whole GPU is free of shares.
submit whole
complete whole
each 1 '^GPU 0: '
remove whole
kubectl get events --field-selector type=Warning --output custom-columns=OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message
if real && [ -n "$(processes)" ]; then
  echo "these processes still use the GPU: $(processes)" >&2
  exit 1
fi
if [ "$(settings)" != "$before" ]; then
  settings
  echo "the settings of the GPUs are others than before" >&2
  exit 1
fi
echo "pods with a whole GPU and with shares ran, also beside faults and while the plugin and the supervisor were away"
