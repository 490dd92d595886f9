// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gobuild runs go build and shows how far it is.
package gobuild

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Build is one call of go build.
type Build struct {
	// Label begins each line of progress.
	Label string
	// Target is the file, or the directory with a slash at its end, that go build writes.
	Target string
	// Flags are build flags.
	Flags, Packages []string
	// Command makes a command of the go program; Run sets its outputs.
	Command func(args ...string) *exec.Cmd
}

// Run lists the packages that are not compiled yet, then builds. An error has the last messages of the go command.
func (b Build) Run(out io.Writer) error {
	m := newMeter(out, b.Label)
	ticker := time.NewTicker(m.interval())
	defer ticker.Stop()
	defer m.run(ticker.C)()
	missing, err := b.run(m, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}")
	if err != nil {
		return err
	}
	m.compiles(strings.Count(missing, "\n"), time.Now())
	_, err = b.run(m, "build", "-v", "-o", b.Target)
	return err
}

func (b Build) run(m *meter, args ...string) (string, error) {
	args = append(append(args, b.Flags...), b.Packages...)
	var out strings.Builder
	cmd := b.Command(args...)
	cmd.Stdout, cmd.Stderr = &out, m
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, m.tail())
	}
	return out.String(), nil
}
