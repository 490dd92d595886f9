// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// makes matches calls that make a cache of objects of the API server.
var makes = regexp.MustCompile(`\b(New\w*Informer\w*|NewReflector\w*|NewSharedInformerFactory\w*|NewFilteredDynamicSharedInformerFactory)\(`)

// TestInformers_AllPackages_LimitTheirObjects has the reason for each file that makes a cache by itself. Others call Informer, which
// limits the memory of an object.
func TestInformers_AllPackages_LimitTheirObjects(t *testing.T) {
	allowed := map[string]string{
		"pkg/cluster/read/read.go":                     "Informer and SliceInformer",
		"pkg/node/kubeletplugin/publishing/cordons.go": "one object: the plugin's Node, of which it keeps annotations, at most 256 kB",
		"pkg/node/demand/demand.go":                    "one object: the ConfigMap that the controller writes",
		"sim/agent/agent.go":                           "the simulator's own objects, which is for tests",
	}
	root := filepath.Join("..", "..", "..")
	var found []string
	for _, dir := range []string{"api", "cmd", "internal", "pkg", "sim"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			name, _ := filepath.Rel(root, path)
			if makes.Match(text) {
				found = append(found, filepath.ToSlash(name))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range found {
		if allowed[name] == "" {
			t.Errorf("%s makes a cache of objects without a limit; use read.Informer", name)
		}
	}
	for name := range allowed {
		if !slices.Contains(found, name) {
			t.Errorf("%s makes no cache", name)
		}
	}
}
