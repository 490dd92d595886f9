#!/usr/bin/env bash
# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that `make test-kind` lacks. The package of Docker does not start its dockerd: the test
# has one of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
policy=/usr/sbin/policy-rc.d
packages=(gcc:gcc make:make git:git ip:iproute2 dockerd:docker.io docker:docker.io iptables:iptables mmdebstrap:mmdebstrap pkg-config:pkg-config)
[ -e /usr/include/seccomp.h ] || packages+=(seccomp.h:libseccomp-dev)
if [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi
hack/ci-packages.sh "${packages[@]}" >&2
