// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutation breaks the code, one named change at a time, and checks that the named test fails. A test that
// passes with broken code has no value.
//
// Each mutation replaces one text in one file: the tree itself stays unchanged. A Go file is replaced by a compiler
// overlay. A file of the chart is replaced in a copy of the chart, which the chart's tests read.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"gpu-dra-driver/test/command"
)

// Mutation is a deliberate fault in the code.
type Mutation struct {
	// Name describes the fault.
	Name string
	// File is the mutated file; it must contain Old exactly once, which becomes New.
	File, Old, New string
	// Package and Test name the test that must fail. The package is one of the product or of deployments.
	Package, Test string
}

func main() { command.Main("mutation", run) }

// run applies the mutations whose name or test contains the arguments, all of them without one. File and package names are
// relative to the root of the product's module.
func run(ctx context.Context, only []string, out, log io.Writer) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "gpu-dra-driver").Output()
	if err != nil {
		return fmt.Errorf("find the product's module: %w", err)
	}
	if err := os.Chdir(strings.TrimSpace(string(root))); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MUTATION\tFILE\tCAUGHT BY\tRESULT")
	sound := map[string]error{}
	missed := 0
	for i, s := range mutations {
		if wanted := strings.Join(only, " "); !strings.Contains(s.Name, wanted) && !strings.Contains(s.Test, wanted) {
			continue
		}
		began := time.Now()
		fmt.Fprintf(log, "[%2d/%d] %-60s", i+1, len(mutations), s.Name)
		result := evaluate(ctx, dir, s, sound)
		if result != "caught" {
			missed++
		}
		fmt.Fprintf(log, " %5.1f s  %s\n", time.Since(began).Seconds(), result)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.File, s.Test, result)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "\n%s\n", table.String()); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d mutations were not caught", missed)
	}
	return nil
}

// evaluate applies one mutation and runs its test, which must pass without it.
func evaluate(ctx context.Context, dir string, s Mutation, sound map[string]error) string {
	key := s.Package + " " + s.Test
	if _, known := sound[key]; !known {
		out, err := test(ctx, s, nil, nil)
		if err == nil && !strings.Contains(out, "--- PASS: "+s.Test) {
			err = fmt.Errorf("there is no test %s in %s", s.Test, s.Package)
		}
		sound[key] = err
	}
	if err := sound[key]; err != nil {
		return "the test fails without it: " + err.Error()
	}
	flags, env, err := change(dir, s)
	if err != nil {
		return err.Error()
	}
	out, err := test(ctx, s, flags, env)
	switch {
	case err == nil:
		return "NOT CAUGHT"
	case !strings.Contains(out, "--- FAIL: "+s.Test) && !strings.Contains(out, "\npanic: "): // A goroutine that panics ends the test without its name.
		return "does not compile or run: " + last(out)
	}
	return "caught"
}

// chart is the chart's directory. Its tests read the chart in the directory that chartVariable names instead.
const (
	chart         = "deployments/helm/gpu-dra-driver"
	chartVariable = "GPU_DRA_DRIVER_CHART"
)

// change writes the changed file, and returns the flags and the environment with which a test meets it.
func change(dir string, s Mutation) (flags, env []string, err error) {
	path, err := filepath.Abs(s.File)
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if n := strings.Count(string(text), s.Old); n != 1 {
		return nil, nil, fmt.Errorf("the text to replace stands %d times in %s", n, s.File)
	}
	changed := filepath.Join(dir, "changed.go")
	if inChart, ok := strings.CutPrefix(s.File, chart+"/"); ok {
		copied := filepath.Join(dir, "chart")
		if err := errors.Join(os.RemoveAll(copied), os.CopyFS(copied, os.DirFS(chart))); err != nil {
			return nil, nil, err
		}
		changed, env = filepath.Join(copied, inChart), []string{chartVariable + "=" + copied}
	} else {
		overlay := filepath.Join(dir, "overlay.json")
		data, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
		if err == nil {
			err = os.WriteFile(overlay, data, 0o600)
		}
		if err != nil {
			return nil, nil, err
		}
		flags = []string{"-overlay", overlay}
	}
	return flags, env, os.WriteFile(changed, []byte(strings.Replace(string(text), s.Old, s.New, 1)), 0o600)
}

func test(ctx context.Context, s Mutation, flags, env []string) (string, error) {
	module, pkg := ".", s.Package
	if in, ok := strings.CutPrefix(pkg, "./deployments/"); ok {
		module, pkg = "deployments", "./"+in
	}
	args := append([]string{"-C", module, "test", "-count=1", "-timeout=5m", "-v", "-failfast", "-vet=off", "-run", "^" + s.Test + "$"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func last(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}
