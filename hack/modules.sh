#!/usr/bin/env bash
# Prints the directory of each module of this project but tools/, which has requirements and no code, and test/ecosystem, whose
# requirements take minutes to compile.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*go.mod' | grep -v '^tools/\|^test/ecosystem/' | xargs -n 1 dirname
