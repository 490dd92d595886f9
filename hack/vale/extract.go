// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// page collects the prose of one source file as Markdown. Line numbers stay those of the source.
type page []string

func newPage(source []byte) page { return make(page, bytes.Count(source, []byte("\n"))+1) }

func (p page) bytes() []byte { return []byte(strings.Join(p, "\n") + "\n") }

var (
	// notProse matches comments that tools read.
	notProse = regexp.MustCompile(`^(//[a-z]+:\S|//nolint|//export |// \+build|// (Copyright|SPDX-|Output:|want )|#!|# (Copyright|SPDX-|shellcheck ))`)
	// name matches a word that is an identifier, a path, an address or a number.
	name = regexp.MustCompile(`[^\s"'(),;]*([a-z0-9)][A-Z]|[_/=@\\<>{}|$]|\w\.\w|\w\(\)|--?[a-z]+-|[0-9])[^\s"',;]*`)
	// verb matches a formatting verb.
	verb = regexp.MustCompile(`%[-+# 0-9.*\[\]]*[a-zA-Z]`)
	// word matches a word of a message.
	word = regexp.MustCompile(`[A-Za-z]{2,}`)
)

// text marks names in a line of a comment as code, so that they are neither spelled nor counted as prose. Indented
// lines and lines with code spans of their own stay as they are.
func text(line string) string {
	if strings.HasPrefix(line, "\t") || strings.Contains(line, "`") {
		return line
	}
	return name.ReplaceAllStringFunc(line, func(s string) string {
		end := strings.TrimRight(s, ".:)?!")
		return "`" + end + "`" + s[len(end):]
	})
}

// docStart matches the name at the start of a package's comment.
var docStart = regexp.MustCompile(`^(Package|Command) (\w+)`)

// goProse returns the comments of a Go file and its messages, or nothing for a generated file. unnamed lists the
// lines of doc comments that do not start with their subject's name.
func goProse(source []byte) (comments, messages page, unnamed []int, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, nil, nil, err
	}
	comments, messages = newPage(source), newPage(source)
	lines := strings.Split(string(source), "\n")
	starts := map[int]string{} // names at the start of doc comments, by line
	preamble := map[*ast.CommentGroup]bool{}
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.IMPORT && d.Specs[0].(*ast.ImportSpec).Path.Value == `"C"` {
			preamble[d.Doc] = true
			continue
		}
		doc, name := documented(decl)
		if doc == nil {
			continue
		}
		line := files.Position(doc.Pos()).Line
		starts[line] = name
		first, _, _ := strings.Cut(articles.ReplaceAllString(doc.Text(), ""), " ")
		if strings.TrimRight(first, ",.:\n") != name && doc.Text() != "" {
			unnamed = append(unnamed, line)
		}
	}
	for _, group := range file.Comments {
		if preamble[group] {
			continue // C
		}
		for _, comment := range group.List {
			at := files.Position(comment.Pos())
			if notProse.MatchString(comment.Text) {
				continue
			}
			trailing := strings.TrimSpace(lines[at.Line-1][:at.Column-1]) != ""
			for i, line := range strings.Split(commentText(comment.Text), "\n") {
				if rest, ok := strings.CutPrefix(line, starts[at.Line+i]); ok && rest != line {
					line = "`" + starts[at.Line+i] + "`" + text(rest)
				} else {
					line = text(docStart.ReplaceAllString(line, "$1 `$2`"))
				}
				if trailing && i == 0 {
					line = "- " + line
				}
				comments[at.Line-1+i] += line
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.Field:
			_, field := n.(*ast.Field)
			return field && n.(*ast.Field).Tag == nil
		case *ast.BinaryExpr, *ast.BasicLit:
			s, ok := literal(n.(ast.Expr))
			if !ok {
				return true
			}
			if isMessage(s) {
				at := files.Position(n.Pos()).Line - 1
				if messages[at] != "" {
					messages[at] += ". "
				} else {
					messages[at] = "- "
				}
				messages[at] += text(verb.ReplaceAllString(strings.Join(strings.Fields(s), " "), "X"))
			}
			return false
		}
		return true
	})
	return comments, messages, unnamed, nil
}

var articles = regexp.MustCompile(`^(A|An|The) `)

// documented returns the doc comment and the name of a declared function or of a type declared alone.
func documented(decl ast.Decl) (*ast.CommentGroup, string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return d.Doc, d.Name.Name
	case *ast.GenDecl:
		if t, ok := d.Specs[0].(*ast.TypeSpec); ok && len(d.Specs) == 1 && !d.Lparen.IsValid() {
			return d.Doc, t.Name.Name
		}
	}
	return nil, ""
}

// commentText returns a comment without its marks.
func commentText(s string) string {
	if rest, ok := strings.CutPrefix(s, "//"); ok {
		return strings.TrimPrefix(rest, " ")
	}
	return strings.TrimSuffix(strings.TrimPrefix(s, "/*"), "*/")
}

// literal returns the value of a string literal or of a sum of them.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING || strings.HasPrefix(e.Value, "`") && strings.Contains(e.Value, "\n") {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		x, xok := literal(e.X)
		y, yok := literal(e.Y)
		return x + y, xok && yok && e.Op == token.ADD
	}
	return "", false
}

// isMessage reports whether a person reads a string: it has three words and is neither a command nor data.
func isMessage(s string) bool {
	return len(word.FindAllString(s, 4)) >= 3 && strings.Count(s, " ") >= 2 && !strings.ContainsAny(s, "{}\t`<>|") &&
		!strings.HasPrefix(s, "-") && !strings.Contains(s, " -") && !strings.Contains(s, "==")
}

var setting = regexp.MustCompile(`^\s*(- )?[\w./-]+:(\s*$| [^a-z]| (true|false|null))`)

// hashProse returns the comments of a file whose comments start with #: YAML, shell, make, Dockerfile.
func hashProse(source []byte) page {
	p := newPage(source)
	for i, line := range strings.Split(string(source), "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") || notProse.MatchString(line) {
			continue
		}
		line = strings.TrimPrefix(strings.TrimLeft(line, "#"), " ")
		if setting.MatchString(line) || strings.HasPrefix(line, "  ") {
			continue
		}
		if i == 0 && !strings.HasSuffix(line, ".") {
			line = "# " + line // a demo's title
		}
		p[i] = text(strings.TrimPrefix(line, "-- "))
	}
	return p
}
