#!/usr/bin/env bash
# Measures the scheduler with many nodes. Usage: bench-scheduling.sh KUBERNETES [RUN [FLAG...]]
# RUN has names of runs: cells, 500, mixed, misfit, 1.36. Without names all of them run, or with flags only cells. Flags of
# test/scheduling replace those of a run.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 runs=${2:-}
shift $(($# < 2 ? $# : 2))
[ -n "$runs" ] || { [ $# -gt 0 ] && runs=cells || runs="cells 500 mixed misfit 1.36"; }
# The newest patch that the tests of other versions use.
old=$(sed -n 's/^known=(\(.*\))$/\1/p' hack/test-versions.sh | tr ' ' '\n' | grep -m1 '^v1\.36\.')
CGO_ENABLED=0 go -C test build -trimpath -o ../bin/bench-scheduling ./scheduling
bench=(bin/bench-scheduling -onenode bin/onenode)
for run in $runs; do
  case $run in
  cells) "${bench[@]}" -kubernetes "$version" "$@" ;;
  500) "${bench[@]}" -kubernetes "$version" -nodes 500 -settings plain,auto,some-1g -workloads whole "$@" ;;
  mixed) "${bench[@]}" -kubernetes "$version" -nodes 500 -settings plain,auto-mixed,some-mixed,some-gpus -workloads mixed -pods 1000 -limit 2m "$@" ;;
  misfit)
    for flags in "-unsatisfiable 0" "-unsatisfiable 1" "-unsatisfiable 1 -filter-timeout 100ms"; do
      # shellcheck disable=SC2086 # Words.
      "${bench[@]}" -kubernetes "$version" -nodes 20 -settings all -workloads none -used empty -limit 30s $flags "$@"
    done
    ;;
  1.36)
    bin/onenode build --kubernetes "$old"
    "${bench[@]}" -kubernetes "$old" -nodes 200 -cut 5 -settings plain,auto,some-cut -workloads whole,mixed -pods 300 -limit 1m "$@"
    ;;
  *)
    echo "$run is not one of cells, 500, mixed, misfit, 1.36" >&2
    exit 2
    ;;
  esac
done
