// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command size prints how large the product is by wing, without tests and fixtures: tokens of Go without comments and
// imports, and lines. It fails where a wing has more tokens, or the product more long lines or fields of functions,
// than the ceilings allow.
//
// A change adds what it takes out. A ceiling rises only in a commit of its own, which says what users get for it.
package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"gpu-dra-driver/hack/layers"
)

//go:embed ceilings.tsv
var ceilingsText string

// columns is the length of a line, with a tab as four, above which it is long.
const columns = 120

// The rows of the ceilings beside the wings.
const longLines, functionFields = "long lines", "function fields"

// size counts a file or a wing.
type size struct{ tokens, lines, long, functions int }

func (s *size) add(o size) {
	s.tokens += o.tokens
	s.lines += o.lines
	s.long += o.long
	s.functions += o.functions
}

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	ceilings, err := parseCeilings(ceilingsText)
	if err != nil {
		return err
	}
	packages, err := layers.Packages()
	if err != nil {
		return err
	}
	wings := map[string]size{}
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join(root, p.Path, "*.go"))
		if err != nil {
			return err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			one, err := measure(file, text)
			if err != nil {
				return err
			}
			wing := wings[p.Wing()]
			wing.add(one)
			wings[p.Wing()] = wing
		}
	}
	table, above := compare(wings, ceilings)
	fmt.Print(table)
	if len(above) > 0 {
		return fmt.Errorf("%s. Take out what is not needed, or raise a ceiling of hack/size/ceilings.tsv in a commit of its own that says "+
			"what users get for it", strings.Join(above, "; "))
	}
	return nil
}

// parseCeilings reads rows of a wing, or of what else is counted, and its largest number.
func parseCeilings(text string) (map[string]int, error) {
	out := map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, number, _ := strings.Cut(line, "\t")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("ceilings.tsv: %q is not a name and a number", line)
		}
		out[name] = n
	}
	return out, nil
}

// measure counts one file.
func measure(name string, text []byte) (s size, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return s, err
	}
	var imports [][2]int
	for _, d := range parsed.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			imports = append(imports, [2]int{files.Position(g.Pos()).Offset, files.Position(g.End()).Offset})
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if t, ok := n.(*ast.StructType); ok {
			for _, f := range t.Fields.List {
				if _, ok := f.Type.(*ast.FuncType); ok {
					s.functions += max(1, len(f.Names))
				}
			}
		}
		return true
	})
	var words scanner.Scanner
	file := files.AddFile(name, files.Base(), len(text))
	words.Init(file, text, nil, 0)
	var last, before token.Token
	for {
		at, what, literal := words.Scan()
		if what == token.EOF {
			break
		}
		offset := file.Offset(at)
		inside := slices.ContainsFunc(imports, func(r [2]int) bool { return r[0] <= offset && offset < r[1] })
		if !inside && (what != token.SEMICOLON || literal == ";") {
			s.tokens++
		}
		// A layout costs nothing: neither the comma before a bracket on its own line, nor a text on more than one line.
		switch {
		case last == token.COMMA && (what == token.RPAREN || what == token.RBRACE || what == token.RBRACK):
			s.tokens--
		case what == token.STRING && last == token.ADD && before == token.STRING:
			s.tokens -= 2
		}
		before, last = last, what
	}
	for line := range strings.Lines(string(text)) {
		s.lines++
		line = strings.TrimRight(line, "\n")
		if len([]rune(line))+3*strings.Count(line, "\t") > columns {
			s.long++
		}
	}
	return s, nil
}

// compare returns the table of the wings, and what is above its ceiling.
func compare(wings map[string]size, ceilings map[string]int) (table string, above []string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "wing\ttokens\tceiling\tlines\tlong lines\tfunction fields\t")
	var all size
	check := func(name string, n int) {
		if most, known := ceilings[name]; !known || n > most {
			above = append(above, fmt.Sprintf("%s: %d, the ceiling is %d", name, n, most))
		}
	}
	for _, name := range layers.Wings() {
		one := wings[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", name, one.tokens, ceilings[name], one.lines, one.long, one.functions)
		check(name, one.tokens)
		all.add(one)
	}
	fmt.Fprintf(w, "together\t%d\t\t%d\t%d\t%d\t\n", all.tokens, all.lines, all.long, all.functions)
	_ = w.Flush() // It writes to memory.
	check(longLines, all.long)
	check(functionFields, all.functions)
	return b.String(), above
}
