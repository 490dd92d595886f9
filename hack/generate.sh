#!/usr/bin/env bash
# Writes the generated files of every module again. With `gating` without the pictures, which gate nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
for module in $(hack/modules.sh); do
  packages=./...
  [ "${1:-}" != gating ] || packages=$(hack/packages.sh "$module")
  # shellcheck disable=SC2086 # packages are words
  go -C "$module" generate $packages
done
