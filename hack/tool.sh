#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs a Go tool of the modules in tools/, building it on first use.
#
#   hack/tool.sh NAME [ARG...]     run the tool in the current directory
#   hack/tool.sh --path NAME       build it if need be and print its path
#   hack/tool.sh --list            names of the tools
#
# Binaries live in ${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}/tools-<hash>/bin;
# the hash covers this file, go.mod, go.sum and the Go version, so an update never
# runs an old binary. A cold build of helm or golangci-lint takes minutes on two cores.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
modules=("$root/tools" "$root/tools/vale" "$root/tools/kubescore" "$root/tools/nvidia" "$root/tools/adapter" "$root/tools/prometheus")

usage() {
	sed -n '5,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

print_path=false
case ${1:-} in
"" | -h | --help) usage ;;
--list)
	for mod in "${modules[@]}"; do go -C "$mod" list -f '{{.ImportPath}}' tool; done | sed 's|.*/||' | sort
	exit
	;;
--path)
	print_path=true
	shift
	[ $# -eq 1 ] || usage
	;;
esac
name=$1
shift

cgo=0 cflags="-O2 -w" mod=$root/tools tags=
case $name in
vale) cgo=1 mod=$root/tools/vale ;; # Vale parses source files with C code.
kube-score) mod=$root/tools/kubescore ;;
adapter) mod=$root/tools/adapter ;;
prometheus | promtool) mod=$root/tools/prometheus tags=remove_all_sd,enable_kubernetes_sd ;;
gpu-feature-discovery | nvidia-device-plugin | nvidia-mig-parted)
	# They load NVML. With the Makefile's flags most of their packages are in the build cache.
	cgo=1 cflags="-O2 -g -Wno-deprecated-declarations" mod=$root/tools/nvidia
	;;
esac

cache=${GPU_DRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-dra-driver}
hash=$({
	cat "${BASH_SOURCE[0]}" "$mod/go.mod" "$mod/go.sum"
	cd "$mod" && go env GOVERSION GOOS GOARCH
} | sha256sum | cut -c1-16)
bin=$cache/tools-$hash/bin
exe=$bin/$name

if [ ! -x "$exe" ]; then
	pkg=$(go -C "$mod" list -f '{{.ImportPath}}' tool | grep -E "(^|/)$name\$" || true)
	if [ -z "$pkg" ]; then
		echo "tool.sh: no tool named $name in ${mod#"$root"/}/go.mod; there are: $("$0" --list | xargs)" >&2
		exit 2
	fi
	echo "tool.sh: building $name (once, into $bin)" >&2
	mkdir -p "$bin"
	ldflags="-s -w"
	if [ "$name" = helm ]; then
		# Without its Makefile's flags helm takes itself for a client of 1.20,
		# and refuses charts that ask for a newer one.
		helm=helm.sh/helm/v3
		minor=$(go -C "$mod" list -m -f '{{.Version}}' k8s.io/client-go | cut -d. -f2)
		ldflags+=" -X $helm/internal/version.version=$(go -C "$mod" list -m -f '{{.Version}}' $helm)"
		for p in pkg/chartutil pkg/lint/rules; do
			ldflags+=" -X $helm/$p.k8sVersionMajor=1 -X $helm/$p.k8sVersionMinor=$minor"
		done
	fi
	# Built beside its final name and renamed, so that two callers at once
	# never run half a binary.
	tmp=$(mktemp "$bin/.$name.XXXXXX")
	trap 'rm -f "$tmp"' EXIT
	(cd "$mod" && CGO_ENABLED=$cgo CGO_CFLAGS="$cflags" GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -tags="$tags" -ldflags="$ldflags" -o "$tmp" "$pkg")
	chmod 755 "$tmp"
	mv -f "$tmp" "$exe"
	trap - EXIT
fi

if $print_path; then
	echo "$exe"
else
	exec "$exe" "$@"
fi
