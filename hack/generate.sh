#!/usr/bin/env bash
# Writes the generated files of every module again.
set -euo pipefail
cd "$(dirname "$0")/.."
for module in $(hack/modules.sh); do go -C "$module" generate ./...; done
