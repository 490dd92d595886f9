#!/usr/bin/env bash
# Builds the kubectl plugin for each platform, with an archive, checksums and a manifest for `krew`.
# Usage: [BASE_URL=URL] [HOME_URL=URL] dist.sh VERSION OUT [OS/ARCH...]; BASE_URL is the place of the published archives, HOME_URL
# the project's page.
# The archives are the same bytes on every machine: their times are the time of the newest commit.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 out=$2 base=${BASE_URL:-https://example.com/gpu-dra-driver/v$1}
shift 2
# Archives with an address are for publication.
[ -z "${BASE_URL:-}" ] || hack/check-release.sh "$version"
platforms=("$@")
[ $# -gt 0 ] || platforms=({linux,darwin,windows}/{amd64,arm64})
mkdir -p "$out"
time=$(git log -1 --format=%ct)
manifest=$out/gpu.yaml
tool=$(mktemp -d)
trap 'rm -r "$tool"' EXIT
go -C deployments build -trimpath -o "$tool/images" ./images
sed "s/VERSION/$version/; s,HOME_URL,${HOME_URL:-$base}," hack/krew.yaml >"$manifest"
: >"$out/SHA256SUMS"
for platform in "${platforms[@]}"; do
  os=${platform%/*} arch=${platform#*/}
  stage=$(mktemp -d)
  program=kubectl-gpu
  [ "$os" != windows ] || program=kubectl-gpu.exe
  echo "kubectl-gpu $platform" >&2
  CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$version" \
    -o "$stage/$program" ./cmd/kubectl-gpu
  (cd deployments && "$tool/images" --notices "$stage/$program") >"$tool/notices"
  cp "$tool/notices" "$stage/THIRD-PARTY-NOTICES"
  cp LICENSE cmd/kubectl-gpu/kubectl_complete-gpu "$stage/"
  archive=kubectl-gpu-$version-$os-$arch.tar.gz
  tar --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner -C "$stage" -cf - . | gzip -n >"$out/$archive"
  rm -r "$stage"
  (cd "$out" && sha256sum "$archive") >>"$out/SHA256SUMS"
  sum=$(tail -n 1 "$out/SHA256SUMS" | cut -d' ' -f1)
  cat >>"$manifest" <<END
    - selector:
        matchLabels:
          os: $os
          arch: $arch
      uri: $base/$archive
      sha256: $sum
      bin: $program
END
done
