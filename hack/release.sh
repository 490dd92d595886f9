#!/usr/bin/env bash
# Makes a release: images for both architectures, archives, chart, notes, provenance and checksums, into DIST/release-VERSION.
# With REGISTRY=HOST/PATH it pushes images and chart. Pages with placeholders, or a missing section of the changelog, keep it from
# publishing; a release that stays on this machine only reports the placeholders. Usage: release.sh VERSION DIST
# Variables, all optional: REGISTRY, BASE_URL of the archives, HOME_URL and SOURCE_URL of the project, BUILDER for the provenance,
# KEY, a file that signs.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 dist=$2
publish=${BASE_URL:-}
case ${REGISTRY:-localhost} in
localhost | localhost[:/]* | 127.0.0.1[:/]*) ;;
*) publish=1 ;;
esac
if ! hack/check-release.sh "$version"; then
  [ -z "$publish" ] || exit 1
  echo "release: not fit for publication; this release stays on this machine" >&2
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
