#!/usr/bin/env bash
# Unpacks Debian's Prometheus into the cache on first use, and prints the directory of `prometheus` and `promtool`. It needs
# no root. PROMETHEUS_DIR names another directory.
set -euo pipefail
[ -z "${PROMETHEUS_DIR:-}" ] || { echo "$PROMETHEUS_DIR" && exit; }
cache=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}
candidate() { LC_ALL=C apt-cache policy prometheus | awk '/Candidate:/ && $2 != "(none)" {print $2}'; }
version=$(candidate)
[ -n "$version" ] || { apt-get update -q >&2 && version=$(candidate); }
[ -n "$version" ] || { echo "prometheus.sh: apt-get knows no package prometheus; set PROMETHEUS_DIR" >&2 && exit 1; }
dir=$cache/prometheus-$version
if [ ! -d "$dir" ]; then
  mkdir -p "$cache"
  tmp=$(mktemp -d "$cache/.prometheus.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  # The user that apt would change to cannot write here.
  (cd "$tmp" && apt-get -q -o APT::Sandbox::User=root download "prometheus=$version" >&2 && dpkg -x ./*.deb . && rm ./*.deb)
  chmod 755 "$tmp"
  mv -T "$tmp" "$dir" || [ -d "$dir" ]
fi
echo "$dir/usr/bin"
