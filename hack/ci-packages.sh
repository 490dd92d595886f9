#!/usr/bin/env bash
# Installs what a bare Debian machine lacks for the tests, or for the given commands, each as COMMAND:PACKAGE. Does
# nothing where it is all there.
set -euo pipefail
[ $# -gt 0 ] || set -- gcc:gcc make:make git:git node:nodejs
missing=()
for pair; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -q
  apt-get install -qy --no-install-recommends "${missing[@]}"
fi
