#!/bin/sh
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs runc, and again if it could not freeze a new container. With cgroup v1 and systemd's driver runc freezes a
# container before it sets limits, and gives up too early on a busy machine. The pod of a Job would then have failed.
log= previous= create=false
for word; do
	[ "$previous" != --log ] || log=$word
	[ "$word" != create ] || create=true
	previous=$word
done
for _ in 1 2 3 4 5; do
	/usr/local/sbin/runc.real "$@"
	rc=$?
	$create && [ $rc -ne 0 ] && tail -n 1 "$log" 2>/dev/null | grep -q 'unable to freeze' || exit $rc
done
exit $rc
