// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "gpu-dra-driver/"

var (
	// function is a function of the tree as code, such as `pkg/claim/plan.Make` or `pkg/devicestate.Engine.Prepare`.
	function = regexp.MustCompile("`((?:cmd|internal|pkg)/[a-z0-9/-]+\\.[A-Za-z][A-Za-z0-9.]*)`")
	// stop is a function at the begin of a paragraph; other matches are headings.
	stop = regexp.MustCompile("(?m)^(?:## .*|" + function.String() + ")")
)

// TestTours_Stops_CallEachOtherInThisOrder checks that the functions of a tour exist, and that the walk is one of the
// code. A stop is called by an earlier one: directly, by functions that the tour leaves out, by an interface of the
// tree, or as a value. Stops with the same caller stand in the order in which it calls them first; implementations of an
// interface in that of their packages. The first stop of a
// part, below a heading, needs no caller: a library or a command calls it.
func TestTours_Stops_CallEachOtherInThisOrder(t *testing.T) {
	pages, err := filepath.Glob("../../docs/tours/*.md")
	if err != nil || len(pages) != 3 {
		t.Fatalf("%d tours, %v", len(pages), err)
	}
	g := loadCalls(t)
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if lines := strings.Count(text, "\n"); lines > 250 {
			t.Errorf("%s has %d lines, at most 250", page, lines)
		}
		for _, found := range function.FindAllStringSubmatch(text, -1) {
			if g.functions[found[1]] == nil {
				t.Errorf("%s: there is no function %s", page, found[1])
			}
		}
		var walk []string
		for _, found := range stop.FindAllStringSubmatch(text, -1) {
			walk = append(walk, found[1])
		}
		if len(walk) < 20 {
			t.Errorf("%s has only %d stops", page, len(walk))
		}
		for _, problem := range g.check(walk) {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

func TestTours_WrongWalks_AreReported(t *testing.T) {
	g := loadCalls(t)
	const (
		kubelet = "pkg/node/kubeletplugin.service.PrepareResourceClaims"
		prepare = "pkg/devicestate.Engine.Prepare"
		plan    = "pkg/claim/plan.Make"
		effects = "pkg/devicestate.Engine.carryOut"
		put     = "pkg/claim/record.Store.Put"
	)
	for _, c := range []struct {
		walk []string
		want int
	}{
		{[]string{part, kubelet, prepare, plan, effects, put}, 0},
		{[]string{part, kubelet, part, plan, part, effects}, 0},
		{[]string{part, kubelet, plan, prepare}, 1},         // Prepare calls Make.
		{[]string{part, prepare, effects, plan}, 1},         // The plan comes before the effects.
		{[]string{part, prepare, part, effects, plan}, 1},   // Also with a heading between them.
		{[]string{part, plan, put}, 1},                      // A plan writes nothing.
		{[]string{part, prepare, plan, plan}, 1},            // No stop comes twice.
		{[]string{part, prepare, "pkg/claim/plan.Made"}, 1}, // There is no such function.
	} {
		if got := g.check(c.walk); len(got) != c.want {
			t.Errorf("%v: %d problems, want %d: %q", c.walk, len(got), c.want, got)
		}
	}
}

// calls is the graph of the calls in the tree.
type calls struct {
	functions map[string]types.Object
	// of lists the functions, methods of interfaces, and variables and fields with functions, that an object names, in
	// the order of the source.
	of map[types.Object][]types.Object
}

// part is the heading of a part in a walk.
const part = ""

var load = sync.OnceValues(func() ([]*packages.Package, error) {
	return packages.Load(&packages.Config{Mode: packages.LoadSyntax}, module+"cmd/...", module+"internal/...", module+"pkg/...")
})

func loadCalls(t *testing.T) calls {
	t.Helper()
	found, err := load()
	if err != nil {
		t.Fatal(err)
	}
	g := calls{map[string]types.Object{}, map[types.Object][]types.Object{}}
	var interfaces, named []*types.TypeName
	for _, p := range found {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		if strings.HasSuffix(p.PkgPath, "test") {
			continue // A fixture is not on a tour.
		}
		for _, name := range p.Types.Scope().Names() {
			if n, ok := p.Types.Scope().Lookup(name).(*types.TypeName); ok && types.IsInterface(n.Type()) {
				interfaces = append(interfaces, n)
			} else if ok {
				named = append(named, n)
			}
		}
		for _, f := range p.Syntax {
			g.add(p.TypesInfo, f)
		}
	}
	for _, n := range interfaces {
		g.implement(n, named)
	}
	return g
}

// implement has the methods of an interface call those of each type that has them.
func (g calls) implement(n *types.TypeName, all []*types.TypeName) {
	named, _ := n.Type().(*types.Named)
	if named == nil || named.TypeParams() != nil {
		return
	}
	methods := named.Underlying().(*types.Interface)
	for _, one := range all {
		pointer := types.NewPointer(one.Type())
		if !types.Implements(pointer, methods) {
			continue
		}
		for method := range methods.Methods() {
			if of, _, _ := types.LookupFieldOrMethod(pointer, true, method.Pkg(), method.Name()); of != nil {
				g.of[method] = append(g.of[method], of)
			}
		}
	}
}

func (g calls) add(info *types.Info, f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			from := info.Defs[d.Name]
			name := strings.NewReplacer("(", "", ")", "", "*", "").Replace(from.(*types.Func).FullName())
			g.functions[strings.TrimPrefix(name, module)] = from
			g.names(info, from, d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					for _, name := range v.Names {
						g.names(info, info.Defs[name], v)
					}
				}
			}
		}
	}
}

// names adds the functions that from names within n: those in arguments come before the function that gets them, and
// callbacks after it. A function in a field of a composite literal, or assigned to one, is the field's too.
func (g calls) names(info *types.Info, from types.Object, n ast.Node) {
	field := func(to, value ast.Expr) {
		if s, ok := to.(*ast.SelectorExpr); ok {
			to = s.Sel
		}
		if id, ok := to.(*ast.Ident); ok {
			if v, ok := info.Uses[id].(*types.Var); ok && v.IsField() {
				if _, ok := v.Type().Underlying().(*types.Signature); ok {
					g.names(info, v, value)
				}
			}
		}
	}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := n.Fun
			if s, ok := name.(*ast.SelectorExpr); ok {
				ast.Inspect(s.X, visit)
				name = s.Sel
			}
			callbacks := slices.DeleteFunc(slices.Clone(n.Args), func(a ast.Expr) bool {
				_, ok := info.TypeOf(a).Underlying().(*types.Signature)
				if !ok {
					ast.Inspect(a, visit)
				}
				return !ok
			})
			for _, one := range append([]ast.Expr{name}, callbacks...) {
				ast.Inspect(one, visit)
			}
			return false
		case *ast.KeyValueExpr:
			field(n.Key, n.Value)
		case *ast.AssignStmt:
			if len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					field(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.Ident:
			switch o := info.Uses[n].(type) {
			case *types.Func:
				g.of[from] = append(g.of[from], o.Origin())
			case *types.Var:
				if o.IsField() || o.Pkg() != nil && o.Parent() == o.Pkg().Scope() {
					g.of[from] = append(g.of[from], o.Origin())
				}
			}
		}
		return true
	}
	ast.Inspect(n, visit)
}

// reached lists the stops that from calls, not through other stops, in the order of its source.
func (g calls) reached(from types.Object, stops map[types.Object]string) (out []string) {
	seen := map[types.Object]bool{}
	var visit func(types.Object)
	visit = func(o types.Object) {
		for _, next := range g.of[o] {
			name, ok := stops[next]
			switch {
			case seen[next]:
			case ok:
				out = append(out, name)
			default:
				seen[next] = true
				visit(next)
			}
			seen[next] = true
		}
	}
	visit(from)
	return out
}

// check returns the problems of a walk, which has stops and parts.
func (g calls) check(walk []string) (problems []string) {
	stops := map[types.Object]string{}
	for _, name := range walk {
		if o := g.functions[name]; name != part && (o == nil || stops[o] != "") {
			problems = append(problems, name+" does not exist, or is on the tour twice")
		} else if name != part {
			stops[o] = name
		}
	}
	if problems != nil {
		return problems
	}
	reached := map[string][]string{}
	for o, name := range stops {
		reached[name] = g.reached(o, stops)
	}
	last := map[string]int{} // the place of a caller's last stop
	for i, name := range walk {
		n := i - 1
		for n >= 0 && !slices.Contains(reached[walk[n]], name) {
			n--
		}
		switch {
		case name == part:
		case n < 0 && walk[i-1] != part:
			problems = append(problems, "no earlier stop calls "+name)
		case n >= 0:
			caller := walk[n]
			at := slices.Index(reached[caller], name)
			if before := last[caller]; at < before {
				problems = append(problems, caller+" calls "+name+" before "+reached[caller][before])
			}
			last[caller] = max(last[caller], at)
		}
	}
	return problems
}
