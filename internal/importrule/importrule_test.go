// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package importrule

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "gpu-dra-driver/"

// layers is the table of ARCHITECTURE.md. Prefixes end with a slash.
var layers = map[string]int{
	"api/deviceclass/v1beta1": 0, "pkg/gpu": 0, "pkg/claimerror": 0, "pkg/devicestate/plan": 0, "pkg/cdi": 0, "pkg/resourceslices": 0,
	"pkg/partition/layout": 0, "pkg/sharing": 0, "pkg/topology": 0, "pkg/topology/nccl": 0,
	"pkg/selector": 0, "pkg/fleet": 1, "pkg/deviceclasses": 2, "pkg/nodelabels": 2,
	"internal/host": 1, "internal/nvml": 1, "internal/nvml/real": 1, "internal/nvml/conformance": 1, "internal/nvml/lending": 1, "internal/driverroot": 1,
	"internal/computepolicy": 1, "internal/mpsd": 1, "internal/flagtable": 1,
	"pkg/cdi/store": 1, "pkg/devicestate/record": 1,
	"pkg/partition/mig": 2, "pkg/partition/mps": 2, "pkg/partition/timeslice": 2, "internal/mpsd/supervisor": 2,
	"pkg/devicestate": 3, "pkg/inventory": 3,
	"pkg/kubeletplugin": 4, "pkg/kubeletplugin/kubelettest": 4, "pkg/metrics": 4, "pkg/admission": 4, "pkg/controller": 4,
	"cmd/": 5, "internal/pluginflags": 5, "internal/controllerflags": 5, "internal/refdocs": 5, "internal/importrule": 5,
}

// within lists the imports inside a layer.
var within = []string{
	"pkg/devicestate/plan > api/deviceclass/v1beta1", "pkg/devicestate/plan > pkg/gpu", "pkg/devicestate/plan > pkg/claimerror", "pkg/devicestate/plan > pkg/sharing",
	"pkg/sharing > api/deviceclass/v1beta1", "pkg/sharing > pkg/gpu", "pkg/resourceslices > pkg/sharing", "pkg/topology > pkg/gpu", "pkg/topology/nccl > pkg/gpu", "pkg/devicestate/plan > pkg/topology", "pkg/devicestate/plan > pkg/topology/nccl", "pkg/resourceslices > pkg/topology", "pkg/resourceslices > api/deviceclass/v1beta1",
	"pkg/cdi > pkg/devicestate/plan", "pkg/resourceslices > pkg/gpu",
	"pkg/partition/layout > pkg/gpu", "pkg/resourceslices > pkg/partition/layout",
	"internal/nvml/real > internal/nvml", "internal/nvml/lending > internal/nvml", "internal/nvml/conformance > internal/nvml", "internal/driverroot > internal/nvml/real",
	"pkg/cdi/store > internal/host", "pkg/devicestate/record > internal/host",

	"pkg/kubeletplugin > pkg/metrics", "pkg/controller > pkg/metrics", "pkg/controller > pkg/admission",
	"cmd/dra-controller > internal/controllerflags", "internal/refdocs > internal/controllerflags",
	"cmd/dra-kubelet-plugin > internal/pluginflags", "internal/refdocs > internal/pluginflags",
}

// only says who alone may import what.
var only = map[string]string{
	"github.com/NVIDIA/go-nvml":                            "internal/nvml/real",
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi": "internal/driverroot",
}

// changesFiles are the packages that change the machine outside internal/host, and why.
var changesFiles = map[string]string{
	"internal/mpsd/supervisor": "it runs beside the plugin and keeps no claim's state: what it makes is made anew when it starts",
	"pkg/controller":           "the webhook's certificate is copied from its Secret, at each start and change",
	"pkg/kubeletplugin":        "the hook binary and stale sockets are no claim's effects: each start makes them right again",
}

type file struct {
	pkg  string
	path string
	tree *ast.File
}

func (f file) imports() []string {
	var out []string
	for _, i := range f.tree.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out = append(out, path)
		}
	}
	return out
}

// files parses what ships: no tests, no simulator, no tools.
func files(t *testing.T) []file {
	t.Helper()
	root := "../.."
	var out []file
	for _, top := range []string{"api", "cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			tree, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			out = append(out, file{pkg, path, tree})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 50 {
		t.Fatalf("only %d files found, so this looks in the wrong place", len(out))
	}
	return out
}

func layerOf(pkg string) (int, bool) {
	if l, ok := layers[pkg]; ok {
		return l, true
	}
	for prefix, l := range layers {
		if strings.HasSuffix(prefix, "/") && strings.HasPrefix(pkg, prefix) {
			return l, true
		}
	}
	return 0, false
}

func TestPackagesImportFromLowerLayers(t *testing.T) {
	for _, f := range files(t) {
		own, ok := layerOf(f.pkg)
		if !ok {
			t.Errorf("%s has no layer: give it one here and in ARCHITECTURE.md", f.pkg)
			continue
		}
		for _, path := range f.imports() {
			for prefix, who := range only {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && f.pkg != who {
					t.Errorf("%s imports %s, which only %s may", f.path, path, who)
				}
			}
			pkg, ours := strings.CutPrefix(path, module)
			if !ours {
				continue
			}
			other, ok := layerOf(pkg)
			switch {
			case !ok:
				t.Errorf("%s imports %s, which does not ship", f.path, pkg)
			case other > own, other == own && !slices.Contains(within, f.pkg+" > "+pkg):
				t.Errorf("%s (layer %d) imports %s (layer %d)", f.path, own, pkg, other)
			}
		}
	}
}

func TestTheCoreIsPure(t *testing.T) {
	for _, f := range files(t) {
		if l, ok := layerOf(f.pkg); !ok || l != 0 {
			continue
		}
		for _, path := range f.imports() {
			if path == "os" || path == "sync" || path == "context" || strings.HasPrefix(path, "k8s.io/client-go") || strings.HasPrefix(path, "k8s.io/klog") {
				t.Errorf("%s imports %s", f.path, path)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s starts a goroutine", f.path)
			}
			if name, ok := call(n); ok && (name == "time.Now" || name == "time.Since") {
				t.Errorf("%s reads the clock", f.path)
			}
			return true
		})
	}
}

func TestEffectsGoThroughTheHost(t *testing.T) {
	mutating := []string{
		"os.WriteFile", "os.Create", "os.CreateTemp", "os.OpenFile", "os.Rename", "os.Remove", "os.RemoveAll", "os.Mkdir", "os.MkdirAll",
		"os.MkdirTemp", "os.Link", "os.Symlink", "os.Truncate", "os.Chmod", "unix.Mknod", "unix.Mount", "unix.Unlink",
	}
	used := map[string]bool{}
	for _, f := range files(t) {
		if f.pkg == "internal/host" {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			name, ok := call(n)
			if !ok || !slices.Contains(mutating, name) {
				return true
			}
			used[f.pkg] = true
			if changesFiles[f.pkg] == "" {
				t.Errorf("%s calls %s: what changes the machine goes through internal/host", f.path, name)
			}
			return true
		})
	}
	for pkg := range changesFiles {
		if !used[pkg] {
			t.Errorf("%s is excepted and changes nothing: take it out of the list", pkg)
		}
	}
}

// call names a called function of a package.
func call(n ast.Node) (string, bool) {
	c, ok := n.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return "", false
	}
	return x.Name + "." + s.Sel.Name, true
}
