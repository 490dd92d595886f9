#!/bin/sh
# Checks the driver on this machine's GPUs. It changes no setting of a GPU; MPS daemons, containers and processes of its own
# run for some two minutes. Usage: run.sh [OUT [FLAG...]], as root; FLAG as -driver-root /usr/local/nvidia -dev-root /.
# OUT gets facts.json, fixtures/ and log.txt, without serial numbers and UUIDs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/out}
[ $# -eq 0 ] || shift
mkdir -p "$out"
status=$out/.status
{
  rc=0
  "$here/hardware" -test.v -test.timeout 10m -test.skip 'Simulator|^TestPresent|^TestRecorded' -out "$out" -runc "$here/runc" -hook "$here/nvidia-cdi-hook" "$@" || rc=$?
  echo "$rc" >"$status"
} 2>&1 | sed -u -E 's/(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]*/\1-00000000/g' | tee "$out/log.txt" | grep -E '^ *(---|FAIL|PASS|panic)|_test.go:' || true
rc=$(cat "$status")
rm -f "$status"
echo "facts and log are in $out"
exit "$rc"
