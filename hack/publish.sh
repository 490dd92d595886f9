#!/usr/bin/env bash
# Makes the release of a tag such as v1.2.3 and publishes it on GitHub, for .github/workflows/release.yml. Images and chart go to the
# registry ghcr.io, files to a GitHub release. Usage: publish.sh TAG
# Variables: GITHUB_REPOSITORY, GITHUB_SERVER_URL, GITHUB_ACTOR and RUNNER_TEMP as GitHub sets them, GH_TOKEN, and RELEASE_KEY, the
# text of the key that signs.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=$1 version=${1#v}
: "${RELEASE_KEY:?set the secret RELEASE_KEY: the text of an ECDSA key on P-256}"
project=$GITHUB_SERVER_URL/$GITHUB_REPOSITORY
hack/check-release.sh "$version"
hack/tool.sh helm registry login ghcr.io --registry-config "$HOME/.docker/config.json" --username "$GITHUB_ACTOR" --password-stdin \
  <<<"$GH_TOKEN"
key=$RUNNER_TEMP/release.key
trap 'rm -f "$key"' EXIT
(umask 077 && printf '%s\n' "$RELEASE_KEY" >"$key")
make release VERSION="$version" KEY="$key" REGISTRY="ghcr.io/${GITHUB_REPOSITORY,,}" BASE_URL="$project/releases/download/$tag" \
  HOME_URL="$project" SOURCE_URL="$project" BUILDER="$project/.github/workflows/release.yml@refs/tags/$tag"
kind=()
[[ $version != *-* ]] || kind=(--prerelease)
gh release create "$tag" "${kind[@]}" --title "$tag" --notes-file "dist/release-$version/notes.md" dist/release-"$version"/*
