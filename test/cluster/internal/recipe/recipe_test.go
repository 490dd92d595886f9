// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseVersion_Forms_ParsedOrRefused(t *testing.T) {
	for _, tt := range []struct {
		name, in, want, staging string
	}{
		{"with v", "v1.37.1", "v1.37.1", "v0.37.1"},
		{"without v", "1.34.4", "v1.34.4", "v0.34.4"},
		{"no patch is refused", "v1.37", "", ""},
		{"a pre-release is refused", "v1.38.0-rc.1", "", ""},
		{"an option in disguise is refused", "v1.37.1 -toolexec=x", "", ""},
		{"empty is refused", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := ParseVersion(tt.in)
			if (err != nil) != (tt.want == "") {
				t.Fatalf("ParseVersion(%q) error = %v", tt.in, err)
			}
			if err == nil && (v.String() != tt.want || v.Staging() != tt.staging) {
				t.Errorf("got %s and %s, want %s and %s", v, v.Staging(), tt.want, tt.staging)
			}
		})
	}
}

func TestLDFlags_Version_Named(t *testing.T) {
	v, err := ParseVersion("1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.Join(v.LDFlags(), "\n")
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.36.3",
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=36",
		"-X k8s.io/client-go/pkg/version.gitVersion=v1.36.3",
	} {
		if !strings.Contains(flags, want) {
			t.Errorf("no %q in\n%s", want, flags)
		}
	}
}

const upstream = `module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

godebug (
	winsymlink=0 // a reason
)

require (
	k8s.io/api v0.0.0
	k8s.io/utils v0.0.0-2026
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet // comment
	example.com/fork => example.com/other v1.2.3
	example.com/dir => ./staging/src/example.com/somewhere
)

replace k8s.io/metrics => ./staging/src/k8s.io/metrics
`

func TestKubernetes_StagingModules_ReplacedByPublishedVersions(t *testing.T) {
	c, err := Kubernetes("v1.37.1", upstream)
	if err != nil {
		t.Fatal(err)
	}
	want := `module onenode.invalid/kubernetes

go 1.26.0

require k8s.io/kubernetes v1.37.1

godebug (
	default=go1.26
	winsymlink=0
)

replace (
	k8s.io/api => k8s.io/api v0.37.1
	k8s.io/kubelet => k8s.io/kubelet v0.37.1
	k8s.io/metrics => k8s.io/metrics v0.37.1
)
`
	if diff := cmp.Diff(want, c.GoMod); diff != "" {
		t.Errorf("go.mod (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}, c.Binaries()); diff != "" {
		t.Errorf("binaries (-want +got):\n%s", diff)
	}
}

func TestKubernetes_NoStagingReplaces_ReturnsError(t *testing.T) {
	if _, err := Kubernetes("v1.37.1", "module k8s.io/kubernetes\n"); err == nil {
		t.Error("accepted a go.mod without staging replaces, which cannot build")
	}
}

func TestKey_RecipeChanges_KeyChanges(t *testing.T) {
	base := Component{Name: "x", Version: "v1", Packages: []string{"a"}, GoMod: "m", Sources: map[string]string{"main.go": "1"}}
	keys := map[string]string{base.Key(): "base"}
	for name, change := range map[string]func(*Component){
		"version": func(c *Component) { c.Version = "v2" },
		"tags":    func(c *Component) { c.Tags = []string{"t"} },
		"cgo":     func(c *Component) { c.CGO = true },
		"flags":   func(c *Component) { c.LDFlags = []string{"-X a=b"} },
		"go.mod":  func(c *Component) { c.GoMod = "n" },
		"source":  func(c *Component) { c.Sources = map[string]string{"main.go": "2"} },
	} {
		c := base
		change(&c)
		if other, ok := keys[c.Key()]; ok {
			t.Errorf("a change of %s keeps the key of %s", name, other)
		}
		keys[c.Key()] = name
	}
	if again := base; again.Key() != base.Key() || !strings.HasPrefix(base.Key(), "x-v1-") {
		t.Errorf("key %q is not stable or not readable", base.Key())
	}
}

func FuzzDirectives(f *testing.F) {
	f.Add(upstream)
	f.Add("replace (\n")
	f.Add("replace(\na => b\n)")
	f.Fuzz(func(t *testing.T, goMod string) {
		for _, d := range directives(goMod, "replace") {
			if strings.ContainsAny(d, "\n") || strings.Contains(d, "//") {
				t.Errorf("directive %q", d)
			}
		}
	})
}
