// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"fmt"
	"regexp"
	"strings"
)

var versionForm = regexp.MustCompile(`^v?1\.([0-9]{1,3})\.([0-9]{1,3})$`)

// Version is a released Kubernetes version 1.Minor.Patch.
type Version struct {
	Minor, Patch string
}

// ParseVersion reads "v1.37.1" or "1.37.1".
func ParseVersion(s string) (Version, error) {
	m := versionForm.FindStringSubmatch(s)
	if m == nil {
		return Version{}, fmt.Errorf("Kubernetes version %q: want the form %s, one of %s", s, DefaultKubernetes, strings.Join(KubernetesVersions, " "))
	}
	return Version{Minor: m[1], Patch: m[2]}, nil
}

func (v Version) String() string { return "v1." + v.Minor + "." + v.Patch }

// Staging is the version of this release's staging modules (k8s.io/api and others).
func (v Version) Staging() string { return "v0." + v.Minor + "." + v.Patch }

// LDFlags set the version that the programs report. Without them they report v0.0.0-master, which breaks the
// version-skew checks of clients and kubelets.
func (v Version) LDFlags() []string {
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range [][2]string{{"gitVersion", v.String()}, {"gitMajor", "1"}, {"gitMinor", v.Minor}, {"gitTreeState", "clean"}} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, kv[0], kv[1]))
		}
	}
	return flags
}
