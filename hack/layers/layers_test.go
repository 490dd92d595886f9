// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "gpu-dra-driver/"

// only says who alone may import what.
var only = map[string]string{
	"github.com/NVIDIA/go-nvml":                            "internal/nvml/native",
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi": "internal/driverroot",
}

// changesFiles lists the packages that change files outside internal/host, with the reason.
var changesFiles = map[string]string{
	"cmd/kubectl-gpu":          "it runs on a user's machine, and writes only the archive that the user names",
	"internal/driverroot":      "it makes device nodes that are missing, which no claim owns and the next start finds",
	"internal/mpsd/supervisor": "it runs beside the plugin and keeps no claim's state: what it makes is made anew when it starts",
	"pkg/node/kubeletplugin":   "the hook binary and stale sockets belong to no claim: each start makes them right again",
}

// unlinked lists the packages that must stay out of the plugin's binary, each with those below it, and the reason. The
// plugin runs on each node.
var unlinked = map[string]string{
	"text/template":              "it calls methods by name, so that the linker keeps every method of every Kubernetes type: 20 MB",
	"html/template":              "it needs text/template",
	"github.com/google/cel-go":   "only the controller and kubectl gpu read selectors",
	"github.com/antlr4-go/antlr": "it is the parser of cel-go",
	"cel.dev/expr":               "it is the syntax tree of cel-go",
	"k8s.io/apiserver":           "it needs cel-go",
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
			if pkg, err := filepath.Rel(root, filepath.Dir(path)); err != nil || fixture(pkg) {
				return err
			}
			tree, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
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

func packages(t *testing.T) map[string]Package {
	t.Helper()
	all, err := Packages()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Package{}
	for _, p := range all {
		if _, twice := out[p.Path]; twice {
			t.Errorf("layers.tsv has %s twice", p.Path)
		}
		out[p.Path] = p
	}
	return out
}

// fixture reports whether a package only serves tests.
func fixture(pkg string) bool {
	return strings.HasSuffix(pkg, "test")
}

func TestPackages_Fixtures_AreInInternal(t *testing.T) {
	for _, pattern := range []string{"../../pkg/*test", "../../pkg/*/*test", "../../pkg/*/*/*test", "../../cmd/*/*test"} {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			t.Errorf("%v hold fixtures, %v: put them into internal/testing", found, err)
		}
	}
}

func TestPackages_Imports_PointToLowerLayers(t *testing.T) {
	table, seen, order := packages(t), map[string]bool{}, Wings()
	for _, f := range files(t) {
		own, ok := table[f.pkg]
		seen[f.pkg] = true
		if !ok {
			t.Errorf("%s has no layer: add it to hack/layers/layers.tsv", f.pkg)
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
			other, ok := table[pkg]
			switch {
			case !ok:
				t.Errorf("%s imports %s, which does not ship", f.path, pkg)
			case other.Layer >= own.Layer:
				t.Errorf("%s (layer %d) imports %s (layer %d)", f.path, own.Layer, pkg, other.Layer)
			case slices.Index(order, other.Wing()) > slices.Index(order, own.Wing()):
				t.Errorf("%s imports %s, but the wing %s is below %s", f.path, pkg, own.Wing(), other.Wing())
			case own.Kind != Command && other.Kind == Command:
				t.Errorf("%s imports %s, which only commands may", f.path, pkg)
			case onlyPure(own, other) && other.Kind != Pure:
				t.Errorf("%s imports %s of kind %s: node and cluster meet in pure packages", f.path, pkg, other.Kind)
			}
		}
	}
	for pkg := range table {
		if !seen[pkg] {
			t.Errorf("layers.tsv has %s, which does not exist", pkg)
		}
	}
}

// onlyPure reports whether an import goes from the model of a cluster to the programs of a node.
func onlyPure(from, to Package) bool {
	node, cluster := []string{"gpu", "claim", "node", "internal"}, []string{"cluster", "show"}
	return slices.Contains(cluster, from.Wing()) && slices.Contains(node, to.Wing())
}

func TestPurePackages_ReachOutside_Never(t *testing.T) {
	table := packages(t)
	for _, f := range files(t) {
		if table[f.pkg].Kind != Pure {
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

func TestPlugin_Binary_LinksOnlyWhatItUses(t *testing.T) {
	const plugin = module + "cmd/dra-kubelet-plugin"
	out, err := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", plugin).Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, plugin) {
		t.Fatalf("go list shows %d packages without %s", len(linked), plugin)
	}
	for _, pkg := range linked {
		for heavy, reason := range unlinked {
			if strings.HasPrefix(pkg+"/", heavy+"/") {
				t.Errorf("the plugin links %s: %s. Find who imports it with go list -deps -tags grpcnotrace -json %s", pkg, reason, plugin)
			}
		}
	}
}

func TestFileChanges_OutsideHost_OnlyWhereListed(t *testing.T) {
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

func TestPackages_Comments_AreInDocOrFileOfTheName(t *testing.T) {
	comments := map[string]int{}
	for _, f := range files(t) {
		comments[f.pkg] += 0
		if f.tree.Doc == nil {
			continue
		}
		comments[f.pkg]++
		if base, name := filepath.Base(f.path), f.tree.Name.Name; base != "doc.go" && base != name+".go" {
			t.Errorf("%s has the comment of package %s: move it to doc.go or %s.go", f.path, f.pkg, name)
		}
	}
	for pkg, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments: write one, in doc.go or the file with its name", pkg, n)
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

// mostFunctions is the maximum number of fields with a function. A field with the part that does the work shows what
// is used, and a reader finds its code. A function is for a choice that a caller has, such as the clock of a test.
const mostFunctions = 19

func TestStructs_FunctionFields_AreFew(t *testing.T) {
	var found []string
	for _, f := range files(t) {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range s.Fields.List {
				if _, ok := field.Type.(*ast.FuncType); ok {
					for _, name := range field.Names {
						found = append(found, f.path+": "+name.Name)
					}
				}
			}
			return true
		})
	}
	if len(found) > mostFunctions {
		t.Errorf("%d fields have functions, at most %d may; pass the part itself:\n%s",
			len(found), mostFunctions, strings.Join(found, "\n"))
	}
}
