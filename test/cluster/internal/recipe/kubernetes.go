// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"fmt"
	"strings"
)

// DefaultKubernetes is the default Kubernetes version.
const DefaultKubernetes = "v1.37.1"

// KubernetesVersions are the tested versions, newest first.
var KubernetesVersions = []string{
	"v1.37.2", DefaultKubernetes, "v1.37.0", "v1.36.5", "v1.36.0", "v1.35.8", "v1.35.0", "v1.34.12", "v1.34.0",
}

// KubernetesModule is the module path of Kubernetes.
const KubernetesModule = "k8s.io/kubernetes"

// Kubernetes is the recipe for the programs of one Kubernetes version. goMod is the text of k8s.io/kubernetes's
// go.mod at that version: its replace directives and `godebug` settings are used.
func Kubernetes(version, upstreamGoMod string) (Component, error) {
	v, err := ParseVersion(version)
	if err != nil {
		return Component{}, err
	}
	staging, err := stagingModules(upstreamGoMod)
	if err != nil {
		return Component{}, fmt.Errorf("go.mod of %s %s: %w", KubernetesModule, version, err)
	}
	var m strings.Builder
	m.WriteString(goMod("kubernetes", KubernetesModule, v.String()))
	if debug := godebugSettings(upstreamGoMod); len(debug) > 0 {
		m.WriteString("\ngodebug (\n\t" + strings.Join(debug, "\n\t") + "\n)\n")
	}
	m.WriteString("\nreplace (\n")
	for _, s := range staging {
		fmt.Fprintf(&m, "\t%s => %s %s\n", s, s, v.Staging())
	}
	m.WriteString(")\n")

	c := Component{
		Name: "kubernetes", Module: KubernetesModule, Version: v.String(),
		LDFlags: v.LDFlags(),
		GoMod:   m.String(),
	}
	for _, p := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"} {
		c.Packages = append(c.Packages, KubernetesModule+"/cmd/"+p)
	}
	return c, nil
}
