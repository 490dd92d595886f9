#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# The demos on a kind cluster with simulated GPUs.
#
#   demo/kind/kind.sh up            make the cluster and install the driver
#   demo/kind/kind.sh run [NAME…]   run the demos of demo/, or those named
#   demo/kind/kind.sh down          remove the cluster
#   demo/kind/kind.sh --dry-run …   print the commands instead
#
# Needs Linux, Docker, kind 0.27 or later, kubectl and Go. Kind's nodes run containerd 2, which reads CDI specs by
# default. hack/tool.sh builds Helm. The demo tool (test/demo) installs the charts of simulator and driver and runs the demos;
# node.sh is its way to the node. Images come from `make images` if it ran, or else from Docker with BuildKit.
#
# Environment: CLUSTER (gpu-demo), KIND_NODE_IMAGE (kind's default; the demos need Kubernetes 1.36), VERSION (the
# chart's appVersion), GO_IMAGE (the compiler's image, for Docker), DRIVER_ROOT (a directory of this machine for the
# simulated driver root; default: one that is on the node only).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

cluster=${CLUSTER:-gpu-demo}
version=${VERSION:-$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' deployments/helm/gpu-dra-driver/Chart.yaml)}
state=dist/kind
dry=false

usage() {
	sed -n '7,10s/^# \{0,1\}//p' "$here/kind.sh" >&2
	exit 2
}

# run runs a command, or prints it.
run() {
	if $dry; then
		printf '%q ' "$@" | sed 's/ $/\n/'
	else
		"$@"
	fi
}

fail() {
	echo "kind.sh: $*" >&2
	exit 1
}

need() {
	local program
	$dry && return
	for program in "$@"; do
		command -v "$program" >/dev/null || fail "$program is not installed"
	done
}

# built reports whether the images are there.
built() {
	local image
	for image in dra-kubelet-plugin mps-supervisor dra-controller probe gpu-simulator; do
		[ -e "dist/$image-$version.tar" ] || return 1
	done
}

# build builds the images with Docker.
build() {
	local client
	if ! $dry; then
		client=$(docker version --format '{{.Client.Version}}') || fail "docker does not answer"
		# Older clients have BuildKit built in.
		[ "${client%%.*}" -lt 23 ] || docker buildx version >/dev/null 2>&1 ||
			fail "docker $client needs its plugin buildx for BuildKit: install docker-buildx, or run make images first"
	fi
	export DOCKER_BUILDKIT=1
	run docker build -f deployments/images/Dockerfile ${GO_IMAGE:+--build-arg "GO_IMAGE=$GO_IMAGE"} \
		--build-arg "VERSION=$version" --output "type=local,dest=dist" .
}

# tools builds the programs that run on this machine.
tools() {
	run env CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$version" -o bin/kubectl-gpu ./cmd/kubectl-gpu
	run env CGO_ENABLED=0 go -C test build -trimpath -ldflags "-s -w" -o ../bin/demo ./demo
}

# config prints the cluster's configuration.
config() {
	cat demo/kind/cluster.yaml
	[ -z "${DRIVER_ROOT:-}" ] || printf '    extraMounts:\n      - hostPath: %s\n        containerPath: %s\n' "$DRIVER_ROOT" "$DRIVER_ROOT"
}

up() {
	need docker kind kubectl go
	built || build
	tools
	if $dry || ! kind get clusters 2>/dev/null | grep -qx "$cluster"; then
		run kind create cluster --name "$cluster" --config - ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"} --wait 120s < <(config)
	fi
	skew
	demo install
	echo "Now: demo/kind/kind.sh run" >&2
}

# skew fails if kubectl is not within one minor version of the cluster: it may drop fields that it does not know.
skew() {
	local client server
	$dry && return
	kubeconfig
	read -r client server < <(kubectl version -o json |
		sed -n '/"\(client\|server\)Version"/,/}/s/.*"minor": "\([0-9]*\).*/\1/p' | xargs)
	[ $((client - server)) -ge -1 ] && [ $((client - server)) -le 1 ] ||
		fail "$(command -v kubectl) is of Kubernetes 1.$client and the cluster of 1.$server: put a kubectl of 1.$server first in PATH, and run this again"
}

# kubeconfig writes and selects a file of this cluster only.
kubeconfig() {
	mkdir -p $state
	kind get kubeconfig --name "$cluster" >$state/kubeconfig.new
	chmod 600 $state/kubeconfig.new
	mv $state/kubeconfig.new $state/kubeconfig
	export KUBECONFIG=$PWD/$state/kubeconfig
}

# demo runs the demo tool on the cluster.
demo() {
	$dry || kubeconfig
	run env CLUSTER="$cluster" ONENODE=demo/kind/node.sh ONENODE_DIR=$state SIMULATOR=chart \
		DRIVER_ROOT="${DRIVER_ROOT:-/var/lib/gpusim-root}" bin/demo "$@"
}

demos() {
	need docker kind kubectl go
	tools
	if [ $# -eq 0 ]; then
		demo run
	else
		demo run "$@"
	fi
}

down() {
	need kind
	run kind delete cluster --name "$cluster"
	run rm -rf $state
}

if [ "${1:-}" = --dry-run ]; then
	dry=true
	shift
fi
verb=${1:-}
[ $# -eq 0 ] || shift
case $verb:$# in
up:0) up ;;
run:*) demos "$@" ;;
down:0) down ;;
*) usage ;;
esac
