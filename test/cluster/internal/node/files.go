// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gpu-dra-driver/test/cluster/internal/manifest"
	"gpu-dra-driver/test/cluster/internal/pki"
	"gpu-dra-driver/test/cluster/internal/recipe"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// writeFiles writes the certificates and every component's configuration, on all nodes.
func writeFiles(s spec.Spec) error {
	if err := os.MkdirAll(s.PKI(manifest.FrontProxy), 0o700); err != nil {
		return err
	}
	authority, err := pki.NewAuthority(time.Now())
	if err != nil {
		return err
	}
	if err := authority.Write(s.PKI(""), manifest.Identities(s)); err != nil {
		return err
	}
	if err := pki.WriteServiceAccountKey(s.PKI("")); err != nil {
		return err
	}
	frontProxy, err := pki.NewAuthority(time.Now())
	if err != nil {
		return err
	}
	if err := frontProxy.Write(s.PKI(manifest.FrontProxy), []pki.Identity{{Name: "client", User: manifest.FrontProxy}}); err != nil {
		return err
	}
	runtime, err := s.Program(recipe.Runtime)
	if err != nil {
		return err
	}
	bridge, err := s.Program("bridge")
	if err != nil {
		return err
	}
	files, homes := map[string]string{}, map[string]spec.Spec{}
	for _, number := range s.Members() {
		m := s.On(number)
		if err := os.MkdirAll(m.Conf("cni"), 0o700); err != nil {
			return err
		}
		files[m.Conf("containerd.toml")] = manifest.Containerd(m, runtime, filepath.Dir(bridge))
		files[m.Conf(filepath.Join("cni", "10.conflist"))] = manifest.CNI(m)
		files[m.Conf("kubelet.yaml")] = manifest.Kubelet(m)
		files[m.Conf("resolv.conf")] = ""
		homes[m.KubeletIdentity()] = m
	}
	inner := "https://127.0.0.1:" + spec.APIServerPort
	for _, id := range manifest.Identities(s) {
		home, ok := homes[id.Name]
		if !ok {
			home = s
		}
		path, server := home.Conf(id.Name+".kubeconfig"), inner
		if id.Name == "admin" {
			path, server = s.Kubeconfig(), fmt.Sprintf("https://127.0.0.1:%d", s.Port)
		}
		cert, err := os.ReadFile(s.PKI(id.Name + ".crt"))
		if err != nil {
			return err
		}
		key, err := os.ReadFile(s.PKI(id.Name + ".key"))
		if err != nil {
			return err
		}
		files[path] = manifest.Kubeconfig(server, authority.PEM, cert, key)
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
