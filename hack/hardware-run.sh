#!/usr/bin/env bash
# Runs the hardware bundle on this machine. Usage: hardware-run.sh DIST
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$1/hardware-bundle.tar.gz"
"$work/hardware-bundle/run.sh" "$1/hardware"
