// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/strvals"
)

// loaded holds the charts of the tree by directory. No test changes them.
var loaded sync.Map

// load reads a chart. Rendering changes what it returns.
func load(t *testing.T, dir string) *helmchart.Chart {
	t.Helper()
	files, known := loaded.Load(dir)
	if !known {
		read, err := loader.LoadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		files = read.Raw
		if dir == chart || dir == simulatorChart {
			loaded.Store(dir, files)
		}
	}
	var list []*loader.BufferedFile
	for _, f := range files.([]*helmchart.File) {
		list = append(list, &loader.BufferedFile{Name: f.Name, Data: f.Data})
	}
	c, err := loader.LoadFiles(list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kubeVersion returns the version of Kubernetes for which Helm renders without a cluster: that of the modules, without the patch.
var kubeVersion = sync.OnceValues(func() (chartutil.KubeVersion, error) {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		return chartutil.KubeVersion{}, err
	}
	minor := regexp.MustCompile(`k8s\.io/client-go v0\.(\d+)\.`).FindSubmatch(text)
	if minor == nil {
		return chartutil.KubeVersion{}, fmt.Errorf("go.mod has no version of client-go")
	}
	return chartutil.KubeVersion{Version: fmt.Sprintf("v1.%s.0", minor[1]), Major: "1", Minor: string(minor[1])}, nil
})

// template returns what `helm template` prints for a release of the chart in a directory, by Helm's own packages: the program takes
// ten times as long. TestChart_ValuesFiles_RenderGoldens compares the two.
func template(t *testing.T, release, dir string, args ...string) (string, error) {
	t.Helper()
	flags := pflag.NewFlagSet("template", pflag.ContinueOnError)
	namespace := flags.String("namespace", "default", "")
	sets := flags.StringArray("set", nil, "")
	jsons := flags.StringArray("set-json", nil, "")
	files := flags.StringArray("values", nil, "")
	versions := flags.StringArray("api-versions", nil, "")
	only := flags.StringArray("show-only", nil, "")
	version := flags.String("kube-version", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		t.Fatalf("helm template %q: %v", args, err)
	}
	values := map[string]any{}
	for _, file := range *files {
		read, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return "", err
		}
		values = chartutil.CoalesceTables(read, values)
	}
	for _, value := range *jsons {
		if err := strvals.ParseJSON(value, values); err != nil {
			return "", err
		}
	}
	for _, value := range *sets {
		if err := strvals.ParseInto(value, values); err != nil {
			return "", err
		}
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	var err error
	if capabilities.KubeVersion, err = kubeVersion(); err != nil {
		t.Fatal(err)
	}
	if *version != "" {
		v, err := chartutil.ParseKubeVersion(*version)
		if err != nil {
			return "", err
		}
		capabilities.KubeVersion = *v
	}
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), *versions...)
	c := load(t, dir)
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return "", err
	}
	of := chartutil.ReleaseOptions{Name: release, Namespace: *namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, of, capabilities)
	if err != nil {
		return "", err
	}
	texts, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	for name := range texts {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(texts, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(texts, capabilities.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	show := func(name, content string) {
		if len(*only) == 0 || slices.ContainsFunc(*only, func(file string) bool { return path.Join(c.Name(), file) == name }) {
			fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", name, content)
		}
	}
	for _, m := range manifests {
		show(m.Name, m.Content)
	}
	for _, h := range hooks {
		show(h.Path, h.Manifest)
	}
	if len(*only) > 0 && b.Len() == 0 {
		return "", fmt.Errorf("no template %q renders an object", *only)
	}
	return b.String(), nil
}
