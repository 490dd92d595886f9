#!/usr/bin/env bash
# Runs unit tests that are built for arm64, under qemu-user on a machine of another architecture. Usage:
# test-arm64.sh [PACKAGE...]; without one, those of the system calls.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./internal/host
export GOARCH=arm64 CGO_ENABLED=1
if [ "$(go env GOHOSTARCH)" = arm64 ]; then
  exec go test "$@"
fi
hack/cross-packages.sh
hack/ci-packages.sh qemu-aarch64:qemu-user >&2
CC=aarch64-linux-gnu-gcc exec go test -exec "qemu-aarch64 -L /usr/aarch64-linux-gnu" "$@"
