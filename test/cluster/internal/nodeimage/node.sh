#!/bin/sh
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes a node of the root file system $1: a hook of mmdebstrap, with OVERLAY, IMAGES, PROGRAM, KUBE_PROXY and
# KUBE_PROXY_IMAGE.
set -eu
cp -al "$OVERLAY/." "$1/"
rm -r "$OVERLAY"
$PROGRAM "$1" "$IMAGES/kube-proxy.tar" "$KUBE_PROXY_IMAGE" "$KUBE_PROXY"
chroot "$1" sh -eu >&2 <<'S'
cd /lib/systemd/system
rm -f multi-user.target.wants/* local-fs.target.wants/* sockets.target.wants/*udev* sockets.target.wants/*initctl*
rm -f basic.target.wants/* sysinit.target.wants/systemd-tmpfiles-setup.service /etc/systemd/system/*.wants/*
echo ReadKMsg=no >>/etc/systemd/journald.conf
systemctl -q enable kubelet containerd undo-mount-hacks
systemctl -q mask systemd-binfmt.service
ctr oci spec | jq '.hooks.createContainer = [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >/etc/containerd/cri-base.json
rm -rf /var/lib/apt/lists/* /var/cache/apt/*
S
# The images are in containerd's store, but not unpacked, as in kind's own node images.
chroot "$1" containerd --log-level warn >"$IMAGES/containerd.log" 2>&1 &
containerd=$!
trap 'kill $containerd 2>/dev/null; wait $containerd' EXIT
n=0
until chroot "$1" ctr version >/dev/null 2>&1; do
	n=$((n + 1))
	if [ $n -gt 300 ] || ! kill -0 $containerd; then
		cat "$IMAGES/containerd.log" >&2
		exit 1
	fi
	sleep 0.1
done
for archive in "$IMAGES"/*.tar; do
	chroot "$1" ctr -n k8s.io images import --label=io.cri-containerd.pinned=pinned --all-platforms --no-unpack --digests - <"$archive" >&2
	rm "$archive"
done
kill $containerd
wait $containerd || true
trap - EXIT
rm -rf "$1"/run/containerd
