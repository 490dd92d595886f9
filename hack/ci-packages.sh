#!/usr/bin/env bash
# Installs what a bare Debian machine lacks for the tests. Does nothing where it is all there.
set -euo pipefail
missing=()
for pair in gcc:gcc make:make git:git; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -q
  apt-get install -qy --no-install-recommends "${missing[@]}"
fi
