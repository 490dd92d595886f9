// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifest renders the configuration of every component from a cluster's Spec. It is pure: it
// reads and writes nothing.
//
// Traps, each with the line it explains:
//   - Lowering oom_score_adj needs CAP_SYS_RESOURCE, which containers and sandboxes often lack, and runc
//     reports only "can't get final child's PID from pipe: EOF": restrict_oom_score_adj, oomScoreAdj.
//   - Nodes without a registry need the pinned sandbox image imported under exactly its name.
//   - An AppArmor profile loaded by containerd would outlive the cluster in the host's kernel: disable_apparmor.
//   - `kubectl logs` and `exec` need a node address that is not loopback, and the API server to prefer it.
//   - All nodes of a cluster share one network namespace: each kubelet has ports of its own, each containerd a
//     bridge and a pod range of its own.
//   - There is no kube-proxy: the service address of the API server lies on the node's own loopback
//     device, and the API server dials webhooks by endpoint (--enable-aggregator-routing).
package manifest

import (
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// Containerd is containerd's configuration.
func Containerd(s spec.Spec, runtime, cniBin string) string {
	return fmt.Sprintf(`version = 3
root = %q
state = "/run/containerd"
temp = %q
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = %q

[plugins."io.containerd.internal.v1.opt"]
  path = %q

[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.cri.v1.images"]
  snapshotter = %q
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
`, s.Node("containerd"), s.Node("tmp"), spec.ContainerdSocket, s.Node("opt"), s.Snapshotter, spec.PauseImage, runtime, cniBin, s.Conf("cni"))
}

// CNI is the network configuration list: one bridge, the node's own, whose address is the pods' gateway.
func CNI(s spec.Spec) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "onenode",
  "plugins": [
    {
      "type": "bridge",
      "bridge": %q,
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`, s.Bridge(), s.PodRange())
}

// Kubelet is the kubelet's configuration.
func Kubelet(s spec.Spec) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: %s
authorization:
  mode: Webhook
tlsCertFile: %s
tlsPrivateKeyFile: %s
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
localStorageCapacityIsolation: false
containerRuntimeEndpoint: unix://%s
clusterDNS: [%s]
clusterDomain: cluster.local
resolvConf: %s
volumePluginDir: %s
serializeImagePulls: false
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 50Mi
  nodefs.available: 1%%
  nodefs.inodesFree: 1%%
  imagefs.available: 1%%
  imagefs.inodesFree: 1%%
`, s.PKI("ca.crt"), s.PKI(s.KubeletIdentity()+".crt"), s.PKI(s.KubeletIdentity()+".key"), s.Cgroup(), spec.ContainerdSocket, spec.DNSIP, s.Conf("resolv.conf"), s.Node("volume-plugins"))
	if !s.First() {
		// The first node's kubelet listens on all addresses of the shared network.
		fmt.Fprintf(&b, "port: %d\nhealthzPort: %d\n", s.KubeletPort(), s.KubeletHealthPort())
	}
	if s.Sync != "" {
		fmt.Fprintf(&b, "syncFrequency: %s\n", s.Sync)
	}
	if len(s.FeatureGates) > 0 {
		b.WriteString("featureGates:\n")
		for _, gate := range slices.Sorted(slices.Values(s.FeatureGates)) {
			name, value, _ := strings.Cut(gate, "=")
			fmt.Fprintf(&b, "  %s: %s\n", name, value)
		}
	}
	return b.String()
}
