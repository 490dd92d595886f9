// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	nethtml "golang.org/x/net/html"
)

//go:embed assets
var assets embed.FS

// site is a set of files by their path.
type site struct {
	tree    fs.FS
	version string
	files   map[string][]byte
	pages   map[string]*page // by the path of the source
	parts   []*part
	// navigation has the headings and links of docs/README.md.
	navigation []section
}

// page is a page in Markdown.
type page struct {
	url, title string
	body       []byte // HTML
}

// part is a heading with the text below it, which the search finds.
type part struct{ Title, URL, Text string }

// section is a part of the navigation.
type section struct {
	Title string
	Links []link
}

type link struct{ Title, URL string }

// all is the page whose links are the navigation.
const all = "docs/README.md"

// build renders the pages that README.md and docs/README.md reach, and copies the other files that they link to.
func build(tree fs.FS, version string) (*site, error) {
	s := &site{
		tree: tree, version: version, files: map[string][]byte{}, pages: map[string]*page{},
		navigation: []section{
			{"gpu-dra-driver", []link{{"Overview", address("README.md")}, {"All pages", address(all)}}},
		},
	}
	if err := s.add("README.md"); err != nil {
		return nil, err
	}
	if err := s.add(all); err != nil {
		return nil, err
	}
	layout, err := template.ParseFS(assets, "assets/page.html")
	if err != nil {
		return nil, err
	}
	for _, source := range slices.Sorted(maps.Keys(s.pages)) {
		p := s.pages[source]
		var out bytes.Buffer
		err := layout.Execute(&out, map[string]any{
			"Root": up(p.url), "Title": p.title, "Version": s.version, "Sections": s.navigation, "URL": p.url,
			"Body": template.HTML(p.body), // Of this repository.
		})
		if err != nil {
			return nil, err
		}
		s.files[p.url] = out.Bytes()
	}
	data, err := json.Marshal(s.parts)
	if err != nil {
		return nil, err
	}
	s.files["search.js"] = fmt.Appendf(nil, "window.parts = %s;\n", data)
	for _, name := range []string{"style.css", "site.js"} {
		if s.files[name], err = assets.ReadFile("assets/" + name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// up returns the path from a page to the root of the site.
func up(url string) string { return strings.Repeat("../", strings.Count(url, "/")) }

// address returns the path of a source in the site.
func address(source string) string {
	dir, name := path.Split(source)
	switch {
	case name == "README.md":
		return dir + "index.html"
	case strings.HasSuffix(name, ".md"):
		return dir + strings.TrimSuffix(name, ".md") + ".html"
	}
	return source
}

// add renders a page and adds the files that it links to.
func (s *site) add(source string) error {
	if s.pages[source] != nil {
		return nil
	}
	data, err := fs.ReadFile(s.tree, source)
	if err != nil {
		return err
	}
	p := &page{url: address(source), title: source}
	s.pages[source] = p
	last := &part{Title: source, URL: p.url}
	s.parts = append(s.parts, last)
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(html.WithUnsafe()),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	document := markdown.Parser().Parse(text.NewReader(data), parser.WithContext(parser.NewContext(parser.WithIDs(&anchors{}))))
	err = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			title := plain(n, data)
			if n.Level == 1 && p.title == source {
				p.title, last.Title = title, title
				break
			}
			if n.Level == 2 && source == all {
				s.navigation = append(s.navigation, section{Title: title})
			}
			id, _ := n.AttributeString("id")
			last = &part{Title: p.title + ": " + title, URL: fmt.Sprintf("%s#%s", p.url, id)}
			s.parts = append(s.parts, last)
		case *ast.Text:
			last.Text += string(n.Value(data)) + " "
		case *ast.CodeBlock, *ast.FencedCodeBlock:
			last.Text += string(n.Lines().Value(data))
		case *ast.Link:
			n.Destination, err = s.follow(source, n.Destination)
			if source == all {
				section := &s.navigation[len(s.navigation)-1]
				section.Links = append(section.Links, link{plain(n, data), path.Join("docs", string(n.Destination))})
			}
		case *ast.Image:
			n.Destination, err = s.follow(source, n.Destination)
		}
		return ast.WalkContinue, err
	})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, data, document); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	// Wide tables scroll by themselves.
	p.body = bytes.ReplaceAll(bytes.ReplaceAll(out.Bytes(), []byte("<table>"), []byte(`<div class="wide"><table>`)), []byte("</table>"), []byte("</table></div>"))
	return nil
}

// plain returns the text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, ok := c.(*ast.Text); ok {
			b.Write(t.Value(source))
		} else {
			b.WriteString(plain(c, source))
		}
	}
	return b.String()
}

// follow adds the target of a link to the site, and returns the link to it there.
func (s *site) follow(source string, destination []byte) ([]byte, error) {
	u, err := url.Parse(string(destination))
	if err != nil || u.Scheme != "" || u.Host != "" || u.Path == "" {
		return destination, err
	}
	target := path.Join(path.Dir(source), u.Path)
	info, err := fs.Stat(s.tree, target)
	if err != nil {
		return nil, fmt.Errorf("%s links to %s: %w", source, destination, err)
	}
	switch {
	case info.IsDir():
		if target, err = s.directory(target); err != nil {
			return nil, err
		}
	case strings.HasSuffix(target, ".md"):
		if err := s.add(target); err != nil {
			return nil, err
		}
	default:
		if s.files[target], err = fs.ReadFile(s.tree, target); err != nil {
			return nil, err
		}
	}
	u.Path = up(address(source)) + address(target)
	return []byte(u.String()), nil
}

// directory adds the page of a directory: its README.md or a list of its files. It returns the page's source.
func (s *site) directory(dir string) (string, error) {
	readme := dir + "/README.md"
	if _, err := fs.Stat(s.tree, readme); err == nil || s.pages[readme] != nil {
		return readme, s.add(readme)
	}
	entries, err := fs.ReadDir(s.tree, dir)
	if err != nil {
		return "", err
	}
	p := &page{url: address(readme), title: dir}
	s.pages[readme] = p
	list := &part{Title: dir, URL: p.url}
	s.parts = append(s.parts, list)
	var body strings.Builder
	fmt.Fprintf(&body, "<h1>%s</h1>\n<ul>\n", template.HTMLEscapeString(dir))
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		file := dir + "/" + e.Name()
		if s.files[file], err = fs.ReadFile(s.tree, file); err != nil {
			return "", err
		}
		list.Text += e.Name() + " "
		fmt.Fprintf(&body, "<li><a href=\"%s\">%s</a></li>\n", url.PathEscape(e.Name()), template.HTMLEscapeString(e.Name()))
	}
	body.WriteString("</ul>\n")
	p.body = []byte(body.String())
	return readme, nil
}

// anchors makes the identifiers of headings as GitHub does.
type anchors struct{ used map[string]int }

// Generate implements parser.IDs.
func (a *anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, string(value))
	if a.used == nil {
		a.used = map[string]int{}
	}
	n := a.used[id]
	a.used[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(id)
}

// Put implements parser.IDs.
func (a *anchors) Put([]byte) {}

// check returns an error for each link of a page without a file or a heading in the site.
func (s *site) check() error {
	ids := map[string]map[string]bool{}
	type use struct{ from, to string }
	var uses []use
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		ids[name] = map[string]bool{}
		document, err := nethtml.Parse(bytes.NewReader(s.files[name]))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for n := range document.Descendants() {
			for _, a := range n.Attr {
				switch a.Key {
				case "id":
					ids[name][a.Val] = true
				case "href", "src":
					uses = append(uses, use{name, a.Val})
				}
			}
		}
	}
	var errs []error
	for _, one := range uses {
		u, err := url.Parse(one.to)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", one.from, err))
			continue
		}
		if u.Scheme != "" || one.to == up(one.from)+"../versions.js" {
			continue
		}
		to := one.from
		if u.Path != "" {
			to = path.Join(path.Dir(one.from), u.Path)
		}
		if s.files[to] == nil {
			errs = append(errs, fmt.Errorf("%s links to %s, which is not in the site", one.from, one.to))
		} else if u.Fragment != "" && !ids[to][u.Fragment] {
			errs = append(errs, fmt.Errorf("%s links to %s, and %s has no such heading", one.from, one.to, to))
		}
	}
	return errors.Join(errs...)
}
