#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks the prose of the project with Vale: Markdown, and the comments and messages of Go, YAML and shell files.
#
#   hack/vale.sh                check the paths of hack/vale/paths, as make lint does
#   hack/vale.sh PATH...        check these files and folders
#   hack/vale.sh -count [PATH...]  count the findings of each rule
#
# The rules are in hack/vale/styles/plain, the words that no dictionary has in hack/vale/styles/config/ignore/words.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
vale=$(hack/tool.sh --path vale)
flags=()
while [[ ${1:-} = -* ]]; do
  flags+=("$1")
  shift
done
if [ $# = 0 ]; then
  mapfile -t paths < <(grep -v '^#' hack/vale/paths)
  set -- "${paths[@]}"
fi
go run ./hack/vale -vale "$vale" "${flags[@]}" "$@"
