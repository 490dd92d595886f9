#!/usr/bin/env bash
# Runs the end-to-end tests on other versions of Kubernetes, cheapest first, and keeps what came of it in
# docs/compatibility.md. Usage: [STEPS=REGEX] test-versions.sh [VERSION...], none for all of them. Rows of steps that do
# not run stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
# The oldest and the newest patch of each minor version that the Go module proxy has, in the order of the table.
# make test runs 1.37.1.
known=(v1.37.2 v1.37.0 v1.36.5 v1.36.0 v1.35.8 v1.35.0 v1.34.12 v1.34.0)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${known[@]}")
for v in "${wanted[@]}"; do
  if [[ " ${known[*]} " != *" $v "* ]]; then
    echo "$v is not one of ${known[*]}" >&2
    exit 2
  fi
done
work=$(mktemp -d)
. hack/child.sh
trap 'rm -rf "$work"' EXIT
doc=docs/compatibility.md rows=$work/rows
sed -n '/<!-- versions: begin/,/<!-- versions: end/p' "$doc" >"$work/old"
touch "$rows"
failed=0

# step VERSION WHAT CLUSTER... -- PACKAGE [GO-TEST-ARGUMENT...] runs tests on a cluster of their own.
step() {
  local version=$1 what=$2 cluster=() log=$work/log began=$SECONDS rc=0 result minutes
  shift 2
  if [[ " ${wanted[*]} " != *" $version "* || ! $what =~ ${STEPS:-.} ]]; then
    grep -F "| ${version#v} | $what |" "$work/old" >>"$rows" || true
    return 0
  fi
  while [ "$1" != -- ]; do
    cluster+=("$1")
    shift
  done
  shift
  printf '%-9s %-96s' "$version" "$what"
  cd test
  child ../bin/onenode run --dir "$work/cluster" --kubernetes "$version" "${cluster[@]}" -- \
    "$runner" --format testname -- -p 1 -count=1 -timeout 60m -tags "$TAGS,e2e" "$@" >"$log" 2>&1 || rc=$?
  cd ..
  minutes=$(awk -v s=$((SECONDS - began)) 'BEGIN {printf "%.1f", s / 60}')
  # "DONE 6 tests, 1 skipped in 20 s"
  result=$(sed -n 's/^DONE \([0-9]*\) tests\(, [0-9]* skipped\)\{0,1\} in .*/\1\2/p' "$log" | tail -1)
  if [ "$rc" -eq 0 ]; then
    result="passes: ${result:-no tests}"
    printf ' %5s min  ok\n' "$minutes"
  else
    failed=1
    result="**fails**: $(sed -n 's/^FAIL [^ ]*\.\(Test[^ ]*\) .*/\1/p' "$log" | sort -u | paste -sd ' ' -)"
    printf ' %5s min  failed\n' "$minutes"
    cat "$log" >&2
  fi
  echo "| ${version#v} | $what | $result | $minutes |" >>"$rows"
}

# write puts the rows into the table, the newest version first.
write() {
  local table=$work/table v
  printf '| Kubernetes | ran | came to | minutes on %s cores |\n| --- | --- | --- | --- |\n' "$(nproc)" >"$table"
  for v in "${known[@]}"; do
    grep -F "| ${v#v} |" "$rows" >>"$table" || true
  done
  awk -v table="$table" '
    /<!-- versions: begin/ {print; while ((getline line < table) > 0) print line; inside = 1; next}
    /<!-- versions: end/ {inside = 0}
    !inside' "$doc" >"$work/doc"
  cat "$work/doc" >"$doc"
}

for v in "${wanted[@]}"; do
  bin/onenode build --kubernetes "$v"
done
runner=$(hack/tool.sh --path gotestsum)
resource=resource.k8s.io
# Features that a version has and keeps off. docs/compatibility.md says which cannot be on together, and why there are no
# partitions, groups and shares on 1.34.
taints=DRADeviceTaints=true,DRAExtendedResource=true
counters=DRAPartitionableDevices=true
capacity=DRAConsumableCapacity=true
# The tests that need shares, partitions or groups, shares and no partitions, partitions on two nodes; the health of devices
# in a pod's status, and slices taken in order.
shared='TestDemos/.*(fraction|replicas|sharing|admin-access|budget).*|Budget_EveryForm|TestShares|_SharesOf|MPS|Policies|Tutorial|EarlierRelease|PredictedByBoard'
cut='TestDemos/.*(mig|nvlink|gpu-fault|use-and-cost|pack).*|TestAuto|EvictReset|EachKindOfDevice|ComputeDomain|Partition|Group|NetworkCard'
shared_whole='TestDemos/(admin-access|fraction-(compute|four|refused|two-processes|users)|sharing-.*|replicas)$|TestShares|_SharesOf|MPS|Policies'
nodes_cut='TestDeviceClasses_GPUModelsChange|TestNodeLabels_PodSelectsThem|TestWebhook_ReviewDemos|TestClusterMetrics|TestController_SwitchedOffAndOn|TestMigration_ToNVIDIA'
health=TestGroups_LinkFails
# An init container that has its container's GPU, names of resources that follow from classes, counters in slices of their own.
only135='TestDemos/plugin-workloads|ImplicitExtendedResource|ValuesThatStopTheScheduler'
order=TestDemos/nvlink-fill

step v1.34.0 '`reduced`, feature gates as they are by default' -- ./e2e/reduced
step v1.34.12 '`reduced`, feature gates as they are by default' -- ./e2e/reduced
step v1.35.0 '`reduced`, feature gates as they are by default' -- ./e2e/reduced
step v1.35.8 '`reduced`, feature gates as they are by default' -- ./e2e/reduced
step v1.35.0 '`reduced`; counters, taints, extended resources on' --feature-gates $counters,$taints -- ./e2e/reduced
step v1.36.0 '`reduced`, feature gates as they are by default' -- ./e2e/reduced
step v1.36.5 '`reduced`; counters, consumable capacity off' \
  --feature-gates DRAPartitionableDevices=false,DRAConsumableCapacity=false -- ./e2e/reduced
step v1.34.12 '`nodes` without partitions; counters, taints, extended resources on' \
  --nodes 2 --runtime-config $resource/v1alpha3=true --feature-gates $counters,$taints,ResourceHealthStatus=true -- ./e2e/nodes -skip "$nodes_cut"
step v1.35.8 '`nodes` without warnings; counters, taints, extended resources on' \
  --nodes 2 --feature-gates $counters,$taints -- ./e2e/nodes -skip TestWebhook_ReviewDemos
for v in v1.36.5 v1.37.0 v1.37.2; do
  step $v '`nodes`' --nodes 2 -- ./e2e/nodes
done
step v1.35.8 '`e2e`, what needs shares; consumable capacity, taints, extended resources on' \
  --feature-gates $capacity,$taints -- ./e2e -run "$shared_whole" -skip TestShares_OfSeveralGPUsByMPS
for v in v1.34.12 v1.34.0; do
  step $v '`e2e` without partitions, groups, shares; counters, taints, extended resources on' \
    --runtime-config $resource/v1alpha3=true --feature-gates $counters,$taints,ResourceHealthStatus=true -- ./e2e -skip "$shared|$cut|$only135"
done
step v1.36.0 '`e2e` without partitions, groups, shares' -- ./e2e -skip "$shared|$cut"
step v1.35.8 '`e2e` without shares; counters, taints, extended resources on' \
  --feature-gates $counters,$taints -- ./e2e -skip "$shared|$health|$order"
for v in v1.37.2 v1.37.0 v1.36.5; do
  step $v '`e2e`, `crash`' -- ./e2e ./crash
done
write
exit "$failed"
