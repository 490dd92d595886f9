// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/base64"
	"fmt"

	"gpu-dra-driver/test/cluster/internal/pki"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// FrontProxy is the directory of the certificates with which the API server passes requests on to other API servers, and
// the user of its client certificate. These certificates have an authority of their own: its clients can act for every user.
const FrontProxy = "front-proxy"

// Identities lists the certificates of a cluster. The API server uses the admin's for the kubelet as well.
func Identities(s spec.Spec) []pki.Identity {
	identities := []pki.Identity{
		{Name: "apiserver", User: "kube-apiserver", Hosts: []string{
			"127.0.0.1", spec.ServiceIP, s.NodeIP(), "localhost", s.NodeName(), "kubernetes", "kubernetes.default",
			"kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		{Name: "admin", User: "kubernetes-admin", Groups: []string{"system:masters"}},
		{Name: "kube-controller-manager", User: "system:kube-controller-manager"},
		{Name: "kube-scheduler", User: "system:kube-scheduler"},
	}
	for _, number := range s.Members() {
		m := s.On(number)
		identities = append(identities, pki.Identity{
			Name: m.KubeletIdentity(), User: "system:node:" + m.NodeName(), Groups: []string{"system:nodes"},
			Hosts: []string{m.NodeName(), m.NodeIP(), "127.0.0.1"},
		})
	}
	return identities
}

// Kubeconfig returns a kubeconfig with everything inline.
func Kubeconfig(server string, ca, cert, key []byte) string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: onenode
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: onenode
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: onenode
  context:
    cluster: onenode
    user: onenode
current-context: onenode
`, server, b64(ca), b64(cert), b64(key))
}
