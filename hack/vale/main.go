// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command vale checks the prose of the project with Vale: Markdown, and the comments and messages of Go, YAML and
// shell files. The rules are in styles/plain. Run it as hack/vale.sh.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	vale := flag.String("vale", "", "Vale's executable")
	config := flag.String("config", "hack/vale/.vale.ini", "Vale's configuration")
	count := flag.Bool("count", false, "print the number of findings of each rule instead of the findings")
	flag.Parse()
	findings, err := check(context.Background(), *vale, *config, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vale:", err)
		os.Exit(2)
	}
	if *count {
		findings = byRule(findings)
	}
	for _, finding := range findings {
		fmt.Println(finding)
	}
	if len(findings) > 0 {
		os.Exit(1)
	}
}

// excluded matches files without prose: data of tests, generated files, a list of changes to source code, and
// objects with quoted messages.
var excluded = regexp.MustCompile(`(^|/)testdata/|^docs/reference/|^demo/reviews/`)

// check runs Vale over the tracked files under the paths.
func check(ctx context.Context, vale, config string, paths []string) ([]string, error) {
	config, err := filepath.Abs(config)
	if err != nil {
		return nil, err
	}
	args := append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "--"}, paths...)
	tracked, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	dir, err := os.MkdirTemp("", "vale-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var findings []string
	for _, path := range strings.Fields(string(tracked)) {
		if excluded.MatchString(path) {
			continue
		}
		unnamed, err := write(dir, path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, line := range unnamed {
			findings = append(findings, fmt.Sprintf("%s:%d:1:plain.DocName:Start the doc comment with the name.", path, line))
		}
	}
	cmd := exec.CommandContext(ctx, vale, "--config="+config, "--output=line", "--no-wrap", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil // Findings.
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", vale, err)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "./")
		for _, suffix := range []string{".comments.md:", ".messages.md:"} {
			line = strings.Replace(line, suffix, ":", 1)
		}
		findings = append(findings, line)
	}
	slices.Sort(findings)
	return findings, nil
}

// write puts the prose of a file into dir. It returns the lines of doc comments that do not start with the name.
func write(dir, path string) (unnamed []int, err error) {
	source, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // deleted, not committed
	}
	if err != nil {
		return nil, err
	}
	pages := map[string][]byte{}
	switch base := filepath.Base(path); {
	case strings.HasSuffix(base, ".md"):
		pages[""] = source
	case strings.HasSuffix(base, ".go"):
		var comments, messages page
		if comments, messages, unnamed, err = goProse(source); err != nil {
			return nil, err
		}
		pages[".comments.md"], pages[".messages.md"] = comments.bytes(), messages.bytes()
	case strings.HasSuffix(base, ".yaml"), strings.HasSuffix(base, ".sh"), base == "Makefile", base == "Dockerfile",
		strings.HasSuffix(base, ".Dockerfile"):
		pages[".comments.md"] = hashProse(source).bytes()
	}
	for suffix, content := range pages {
		if len(bytes.TrimSpace(content)) == 0 {
			continue
		}
		to := filepath.Join(dir, path+suffix)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return nil, err
		}
	}
	return unnamed, nil
}

// byRule counts findings by rule.
func byRule(findings []string) []string {
	count := map[string]int{}
	for _, finding := range findings {
		if fields := strings.SplitN(finding, ":", 5); len(fields) == 5 {
			count[fields[3]]++
		}
	}
	var lines []string
	for rule, n := range count {
		lines = append(lines, fmt.Sprintf("%6d %s", n, rule))
	}
	slices.Sort(lines)
	return lines
}
