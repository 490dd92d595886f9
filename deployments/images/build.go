// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// builder turns entries of the catalog into files.
type builder struct {
	root     string // of the repository
	version  string
	work     string // keeps the binaries between runs, so that go build reuses them
	progress io.Writer
}

// build writes the image to file.tar and the list of its parts to file.cdx.json. It returns the image's reference and
// its size in bytes. It removes unfinished files.
func (b builder) build(ctx context.Context, im image, file string) (ref string, size int64, err error) {
	tag, err := name.NewTag(repository + "/" + im.name + ":" + b.version)
	if err != nil {
		return "", 0, fmt.Errorf("version %q cannot be an image tag: %w", b.version, err)
	}
	built := make([]string, len(im.binaries))
	for i, bin := range im.binaries {
		if built[i], err = b.compile(ctx, im, bin); err != nil {
			return "", 0, err
		}
	}
	base := baseFiles()
	if len(im.libs) > 0 || slices.ContainsFunc(im.binaries, func(bin binary) bool { return bin.cgo }) {
		libs, err := closure(os.DirFS("/"), im.libs, built...)
		if err != nil {
			return "", 0, err
		}
		base = append(base, libs...)
	}
	layers := [][]entry{base}
	// The entrypoint changes with every commit and so comes last.
	for i := len(built) - 1; i >= 0; i-- {
		layers = append(layers, []entry{{name: im.binaries[i].path, mode: 0o755, source: built[i]}})
	}
	assembled, err := assemble(im, b.version, layers)
	if err != nil {
		return "", 0, err
	}
	list, err := sbom(tag.Repository.String(), b.version, slices.Concat(layers...))
	if err != nil {
		return "", 0, err
	}
	if err := os.WriteFile(file+".cdx.json", append(list, '\n'), 0o644); err != nil {
		return "", 0, err
	}
	size, err = writeTarball(file+".tar", tag, assembled)
	return tag.String(), size, err
}

// compile builds one binary, stripped and without paths of this machine, and returns its path.
func (b builder) compile(ctx context.Context, im image, bin binary) (string, error) {
	out := filepath.Join(b.work, im.name, path.Base(bin.path))
	version := b.version
	if !strings.HasPrefix(bin.pkg, "./") {
		v, err := b.goCommand(ctx, bin.dir, nil, "list", "-f", "{{.Module.Version}}", bin.pkg)
		if err != nil {
			return "", fmt.Errorf("%s is not in the module graph: %w", bin.pkg, err)
		}
		version = strings.TrimSpace(v)
	}
	ldflags := "-s -w"
	if bin.stamp != "" {
		ldflags += " -X " + bin.stamp + "=" + version
	}
	env := []string{"CGO_ENABLED=0"}
	if bin.cgo {
		// go-nvml resolves NVML's functions with dlopen; the default of some distributions' gcc, binding at start,
		// would make that fatal.
		ldflags += " '-extldflags=-Wl,-z,lazy'"
		env = []string{"CGO_ENABLED=1"}
	}
	fmt.Fprintf(b.progress, "building %s\n", bin.pkg)
	// gRPC's traces use html/template, whose calls by name make the linker keep every method of every type: 20 MB.
	_, err := b.goCommand(ctx, bin.dir, env, "build", "-trimpath", "-buildvcs=false", "-tags=netgo,osusergo,grpcnotrace",
		"-ldflags="+ldflags, "-o", out, bin.pkg)
	return out, err
}

func (b builder) goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.root, dir)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

func writeTarball(file string, tag name.Tag, im v1.Image) (int64, error) {
	partial := file + ".partial"
	if err := tarball.WriteToFile(partial, tag, im); err != nil {
		_ = os.Remove(partial)
		return 0, fmt.Errorf("cannot write %s: %w", file, err)
	}
	if err := os.Rename(partial, file); err != nil {
		_ = os.Remove(partial)
		return 0, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
