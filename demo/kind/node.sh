#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# The verbs of onenode that the demo tool and the end-to-end tests use, for the node of a kind cluster. They call this
# script as $ONENODE. KUBECONFIG and CLUSTER (gpu-demo) name the cluster; --dir is ignored.
#
#   node.sh exec --dir DIR -- CMD...               run a command on the node
#   node.sh load --dir DIR ARCHIVE...              load image archives
#   node.sh stop|start|restart --dir DIR SERVICE   kubelet or containerd
#   node.sh reboot --dir DIR                       restart the node, and wait until it is ready
#   node.sh which PROGRAM                          print the path of a program of this machine
set -euo pipefail

cluster=${CLUSTER:-gpu-demo}
node=$cluster-control-plane
limit=180 # seconds in which a node is ready after a reboot

verb=${1:-}
[ $# -eq 0 ] || shift
while [ "${1:-}" = --dir ]; do shift 2; done
[ "${1:-}" != -- ] || shift

# ready reports whether the kubelet has renewed its lease since a time, and calls its node ready.
ready() {
	local renewed
	renewed=$(kubectl -n kube-node-lease get lease "$node" -o 'jsonpath={.spec.renewTime}' 2>/dev/null) || return
	[ "$(date -d "$renewed" +%s)" -gt "$1" ] &&
		kubectl wait --for=condition=Ready "node/$node" --timeout=1s >/dev/null 2>&1
}

case $verb in
exec) exec docker exec -i "$node" "$@" ;;
load) for archive; do kind load image-archive -q --name "$cluster" "$archive"; done ;;
stop | start | restart) exec docker exec "$node" systemctl "$verb" "$1" ;;
reboot)
	# Without a last renewal of the old kubelet after the time.
	docker exec "$node" systemctl stop kubelet
	since=$(date +%s)
	docker restart "$node" >/dev/null
	until ready "$since"; do
		if [ $(($(date +%s) - since)) -gt $limit ]; then
			echo "node.sh: $node is not ready $limit s after its restart: look at docker logs $node" >&2
			exit 1
		fi
		sleep 0.5
	done
	;;
which) command -v "$1" ;;
*)
	sed -n '8,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
