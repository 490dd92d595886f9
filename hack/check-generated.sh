#!/usr/bin/env bash
# Fails when a generated file differs from what its generator writes. Works on a copy, so that the tree is left alone.
# With `gating` pictures are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard --deduplicate |
  while IFS= read -r -d '' f; do if [ -e "$f" ]; then printf '%s\0' "$f"; fi; done |
  tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
git init -q
git add -A
hack/generate.sh "$@"
if ! git diff --exit-code --stat; then
  echo "generated files have drifted: run make generate and commit" >&2
  exit 1
fi
