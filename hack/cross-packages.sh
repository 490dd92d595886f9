#!/usr/bin/env bash
# Installs Debian's C compiler and C library for the other architecture of the images.
set -euo pipefail
cd "$(dirname "$0")"
case $(go env GOHOSTARCH) in
amd64) gcc=aarch64-linux-gnu-gcc package=gcc-aarch64-linux-gnu libc=libc6-dev-arm64-cross ;;
arm64) gcc=x86_64-linux-gnu-gcc package=gcc-x86-64-linux-gnu libc=libc6-dev-amd64-cross ;;
esac
./ci-packages.sh "$gcc:$package" "$gcc:$libc" >&2
