// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// Component is one process of the cluster.
type Component struct {
	Name string // also the program's
	Args []string
	// Health is the URL that answers 200 when the component works, or empty.
	Health string
}

// Components lists a node's processes in the order in which they start. The first node has the control plane.
func Components(s spec.Spec) []Component {
	containerd := Component{Name: "containerd", Args: []string{"--config=" + s.Conf("containerd.toml"), "--log-level=info"}}
	kubelet := Component{Name: "kubelet", Health: fmt.Sprintf("http://127.0.0.1:%d/healthz", s.KubeletHealthPort()), Args: []string{
		"--config=" + s.Conf("kubelet.yaml"),
		"--kubeconfig=" + s.Conf(s.KubeletIdentity()+".kubeconfig"),
		"--hostname-override=" + s.NodeName(),
		"--node-ip=" + s.NodeIP(),
	}}
	if !s.First() {
		return []Component{containerd, kubelet}
	}
	gates := func(args ...string) []string {
		if len(s.FeatureGates) > 0 {
			args = append(args, "--feature-gates="+strings.Join(s.FeatureGates, ","))
		}
		return args
	}
	apiserver := gates(
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0",
		"--secure-port="+spec.APIServerPort,
		"--advertise-address="+s.NodeIP(),
		"--tls-cert-file="+s.PKI("apiserver.crt"),
		"--tls-private-key-file="+s.PKI("apiserver.key"),
		"--client-ca-file="+s.PKI("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--enable-aggregator-routing=true",
		"--requestheader-client-ca-file="+s.PKI(FrontProxy+"/ca.crt"),
		"--requestheader-allowed-names="+FrontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+s.PKI(FrontProxy+"/client.crt"),
		"--proxy-client-key-file="+s.PKI(FrontProxy+"/client.key"),
		"--kubelet-certificate-authority="+s.PKI("ca.crt"),
		"--kubelet-client-certificate="+s.PKI("admin.crt"),
		"--kubelet-client-key="+s.PKI("admin.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+s.PKI("sa.pub"),
		"--service-account-signing-key-file="+s.PKI("sa.key"),
		"--service-cluster-ip-range="+spec.ServiceRange,
		"--profiling=false",
	)
	if len(s.RuntimeConfig) > 0 {
		apiserver = append(apiserver, "--runtime-config="+strings.Join(s.RuntimeConfig, ","))
	}
	return []Component{
		{Name: "etcd", Health: "http://127.0.0.1:2379/health", Args: []string{
			"--name=" + s.NodeName(),
			"--data-dir=" + s.Node("etcd"),
			"--listen-client-urls=http://127.0.0.1:2379",
			"--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
			"--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=" + s.NodeName() + "=http://127.0.0.1:2380",
			"--unsafe-no-fsync", // the cluster's data does not outlive it
			"--log-level=warn",
		}},
		containerd,
		{Name: "kube-apiserver", Health: "https://127.0.0.1:" + spec.APIServerPort + "/readyz", Args: apiserver},
		{Name: "kube-controller-manager", Health: "https://127.0.0.1:10257/healthz", Args: gates(
			"--kubeconfig="+s.Conf("kube-controller-manager.kubeconfig"),
			"--authentication-kubeconfig="+s.Conf("kube-controller-manager.kubeconfig"),
			"--authorization-kubeconfig="+s.Conf("kube-controller-manager.kubeconfig"),
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
			"--use-service-account-credentials=true",
			"--service-account-private-key-file="+s.PKI("sa.key"),
			"--root-ca-file="+s.PKI("ca.crt"),
			"--kube-api-qps=200",
			"--kube-api-burst=400",
			"--profiling=false",
		)},
		{Name: "kube-scheduler", Health: "https://127.0.0.1:10259/healthz", Args: gates(
			"--kubeconfig="+s.Conf("kube-scheduler.kubeconfig"),
			"--authentication-kubeconfig="+s.Conf("kube-scheduler.kubeconfig"),
			"--authorization-kubeconfig="+s.Conf("kube-scheduler.kubeconfig"),
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
			"--profiling=false",
		)},
		kubelet,
	}
}
