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
# Needs Docker with BuildKit, kind 0.27 or later, kubectl and Go. Kind's nodes run
# containerd 2, which reads CDI specs by default. hack/tool.sh builds Helm.
#
# Environment: CLUSTER (gpu-demo), PROFILE (hgx-h100), KIND_NODE_IMAGE (kind's
# default; the demos need Kubernetes 1.36), VERSION (the chart's appVersion).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

cluster=${CLUSTER:-gpu-demo}
profile=${PROFILE:-hgx-h100}
version=${VERSION:-$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' deployments/helm/gpu-dra-driver/Chart.yaml)}
node=$cluster-control-plane
context=kind-$cluster
simulator=dist/kind-simulator
root=/var/lib/gpusim-root # of the simulated machine, on the node
namespace=gpu-dra-driver
dry=false

usage() {
	sed -n '5,10s/^# \{0,1\}//p' "$here/kind.sh" >&2
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

need() {
	$dry && return
	for program in "$@"; do
		command -v "$program" >/dev/null || {
			echo "kind.sh: $program is not installed" >&2
			exit 1
		}
	done
}

kc() { run kubectl --context "$context" "$@"; }

# The images of the chart and of the demos.
images=(dra-kubelet-plugin mps-supervisor dra-controller probe)

up() {
	need docker kind kubectl go
	run docker build -f deployments/images/Dockerfile --build-arg "VERSION=$version" --output "type=local,dest=dist" .
	run docker build -f demo/kind/simulator.Dockerfile --output "type=local,dest=$simulator" .

	run kind create cluster --name "$cluster" --config demo/kind/cluster.yaml \
		${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"} --wait 120s

	# The simulated machine is on the node: containers get its device nodes and
	# load its libraries.
	run docker exec "$node" mkdir -p /opt/gpusim
	run docker cp "$simulator/." "$node:/opt/gpusim"
	run docker exec "$node" /opt/gpusim/gpusim up --profile "$profile" --root "$root"

	for image in "${images[@]}"; do
		run kind load image-archive --name "$cluster" "dist/$image-$version.tar"
	done
	chart
	echo "Now: demo/kind/kind.sh run" >&2
}

# chart installs or upgrades the driver, with more arguments of Helm if given.
chart() {
	run hack/tool.sh helm upgrade --install gpu-dra-driver deployments/helm/gpu-dra-driver \
		--kube-context "$context" --namespace "$namespace" --create-namespace --wait --timeout 120s \
		--set "image.tag=$version" --set image.pullPolicy=Never --set kubeletPlugin.affinity=null --set "nvidiaDriverRoot=$root" \
		--set "kubeletPlugin.hostProcRoot=$root/proc" --set "kubeletPlugin.hostSysRoot=$root/sys" \
		--set kubeletPlugin.driverRootReadOnly=false "$@"
}

# configure upgrades the chart to a file of demo/settings or none, and waits until the slices match it. The default
# share of a GPU is then less than the GPU, or all of it.
configure() {
	local deadline=$((SECONDS + 150)) want=whole shares
	if [ -n "$1" ] && grep -q '^sharing:' "demo/settings/$1"; then want=shared; fi
	chart ${1:+--values "demo/settings/$1"}
	if $dry; then
		echo "# until the published GPUs are $want"
		return
	fi
	while [ "$SECONDS" -lt "$deadline" ]; do
		shares=$(kubectl --context "$context" get resourceslices -o \
			'jsonpath={range .items[*].spec.devices[*]}{.attributes.type.string} {.capacity.memory.requestPolicy.default} {.capacity.memory.value}{"\n"}{end}' |
			awk '$1 == "gpu" {print ($2 == $3 ? "whole" : "shared")}' | sort -u)
		[ "$shares" = "$want" ] && return
		sleep 1
	done
	echo "kind.sh: the published GPUs are not $want" >&2
	return 1
}

# ran counts the pods of a namespace that run or have succeeded, warned the pending pods that an Event warns of.
ran() {
	kubectl --context "$context" -n "$1" get pods --no-headers | grep -cE ' (Running|Completed) ' || true
}
warned() {
	kubectl --context "$context" -n "$1" get pods --field-selector status.phase=Pending -o name | sed 's,.*/,,' |
		while read -r pod; do kubectl --context "$context" -n "$1" get events --no-headers \
			--field-selector "type=Warning,involvedObject.name=$pod" | tail -n 1; done 2>/dev/null
}

# settled waits until the numbers of running and pending pods match the demo's head.
settled() {
	local space=$1 want=${2:-0} pending=${3:-0} deadline=$((SECONDS + 120)) have=0 waiting=0
	while [ "$SECONDS" -lt "$deadline" ]; do
		have=$(ran "$space") waiting=$(warned "$space" | wc -l)
		[ "$have" -ge "$want" ] && [ "$waiting" -ge "$pending" ] && return
		sleep 1
	done
	echo "kind.sh: in $space, $have of $want pods run and $waiting of $pending wait for a reason" >&2
	kubectl --context "$context" -n "$space" get events --sort-by=.lastTimestamp >&2 || true
	return 1
}

# steps runs the commands of a demo's head. One after "Refused:" must fail.
steps() {
	local label words
	while read -r label _ words; do
		case $words in
		gpu\ *) set -- go run ./cmd/kubectl-gpu --context "$context" ${words#gpu } ;;
		*) set -- kubectl --context "$context" $words ;;
		esac
		if $dry || [ "$label" = Then: ]; then
			run "$@"
		elif "$@"; then
			echo "kind.sh: not refused: $*" >&2
			return 1
		fi
	done < <(sed -n 's/^# \(\(Then\|Refused\):\) `\(.*\)`$/\1 \3/p' "$1")
}

demos() {
	need kubectl
	local file name space pods pending settings in_force=
	[ $# -gt 0 ] || set -- demo/*.yaml $(grep -lE '^# (Pods|Pending): ' demo/*/*.yaml | xargs -n1 dirname)
	for file in "$@"; do
		name=$(basename "$file" .yaml)
		file=demo/$name.yaml space=demo-$name
		# A demo of several files is a directory, and the file whose head counts pods is the first.
		[ -f "$file" ] || file=$(grep -lsE '^# (Pods|Pending): ' demo/"$name"/*.yaml) || {
			echo "kind.sh: there is no $file" >&2
			exit 2
		}
		echo "== $name: $(sed -n '1s/^# //p' "$file")"
		pods=$(sed -n '/^# \(Then\|Refused\): /q; s/^# Pods: //p' "$file")
		pending=$(sed -n '/^# \(Then\|Refused\): /q; s/^# Pending: //p' "$file")
		settings=$(sed -n 's/^# Settings: //p' "$file")
		if [ "$settings" != "$in_force" ]; then
			configure "$settings"
			in_force=$settings
		fi
		kc apply -f "$file"
		if $dry; then
			echo "# until ${pods:-0} pods of $space run and ${pending:-0} wait for a reason"
			steps "$file"
		else
			settled "$space" "$pods" "$pending"
			for pod in $(kubectl --context "$context" -n "$space" get pods --field-selector status.phase!=Pending -o name); do
				kc -n "$space" logs "$pod" --all-containers --prefix
			done
			warned "$space"
			steps "$file"
		fi
		kc delete -f "$file" --wait=true
	done
	[ -z "$in_force" ] || configure ""
}

down() {
	need kind
	run kind delete cluster --name "$cluster"
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
