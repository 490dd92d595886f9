#!/usr/bin/env bash
# Makes a release: images for both architectures, archives, chart, notes, provenance and checksums, into DIST/release-VERSION.
# With REGISTRY=HOST/PATH it pushes images and chart. With BASE_URL it is for publication, and refused while a page has
# placeholders. Without, as for a registry of your own, it only reports them. Usage: release.sh VERSION DIST
# Variables, all optional: REGISTRY, BASE_URL of the archives, HOME_URL and SOURCE_URL of the project, BUILDER for the provenance,
# KEY, a file that signs.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 dist=$2
if ! hack/check-release.sh "$version"; then
  [ -z "${BASE_URL:-}" ] || exit 1
  echo "release: not fit for publication; going on, because no BASE_URL is given" >&2
fi
go -C deployments run ./release --version "$version" --notes >/dev/null # fails before anything is built
make --no-print-directory images-all dist VERSION="$version" DIST="$(realpath -m "$dist")"
args=(--version "$version" --dist "$(realpath "$dist")")
for pair in registry:REGISTRY home:HOME_URL source:SOURCE_URL builder:BUILDER; do
  value=${pair#*:}
  [ -z "${!value:-}" ] || args+=("--${pair%:*}" "${!value}")
done
[ -z "${KEY:-}" ] || args+=(--key "$(realpath "$KEY")")
go -C deployments run ./release "${args[@]}"
