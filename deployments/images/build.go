// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"gpu-dra-driver/deployments/sign"
)

// buildTags leave the C library's name look-ups out of binaries. gRPC's traces use html/template, whose calls by name
// make the linker keep every method of every type: 20 MB.
const buildTags = "-tags=netgo,osusergo,grpcnotrace"

// builder turns entries of the catalog into files below out.
type builder struct {
	root     string // of the repository
	version  string
	out      string
	key      *ecdsa.PrivateKey // signs the images; can be nil
	progress io.Writer
}

// released is an image with its compressed size for each platform.
type released struct {
	reference name.Tag
	digest    v1.Hash // of the OCI index
	sizes     []int64
}

// release builds an image for each platform and writes files below out that start with the image's name and version:
//
//	NAME-VERSION/                the OCI index
//	NAME-VERSION.sig/            its signature, if there is a key
//	NAME-VERSION-ARCH.spdx.json  the SBOM of a platform
//	NAME-VERSION.tar             the image of this machine's platform, or of the only one
func (b builder) release(ctx context.Context, im image, on []platform) (released, error) {
	tag, err := name.NewTag(repository + "/" + im.name + ":" + b.version)
	if err != nil {
		return released{}, fmt.Errorf("version %q cannot be an image tag: %w", b.version, err)
	}
	r := released{reference: tag}
	file := filepath.Join(b.out, im.name+"-"+b.version)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range on {
		one, list, err := b.build(ctx, im, p)
		if err != nil {
			return released{}, err
		}
		target := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: target})
		if err := os.WriteFile(file+"-"+p.arch+".spdx.json", list, 0o644); err != nil {
			return released{}, err
		}
		if p.arch == runtime.GOARCH || len(on) == 1 {
			if err := writeTarball(file+".tar", tag, one); err != nil {
				return released{}, err
			}
		}
		manifest, err := one.Manifest()
		if err != nil {
			return released{}, err
		}
		size := manifest.Config.Size
		for _, layer := range manifest.Layers {
			size += layer.Size
		}
		r.sizes = append(r.sizes, size)
	}
	if r.digest, err = index.Digest(); err != nil {
		return released{}, err
	}
	if err := writeLayout(file, index, tag); err != nil {
		return released{}, err
	}
	if b.key == nil {
		return r, os.RemoveAll(file + ".sig") // that of an earlier build
	}
	signed, err := sign.Digest(b.key, tag.RepositoryStr(), r.digest)
	if err != nil {
		return released{}, err
	}
	return r, writeLayout(file+".sig", signed, tag.Tag(sign.SignatureTag(r.digest)))
}

// build returns the image for one platform, and its SBOM.
func (b builder) build(ctx context.Context, im image, p platform) (v1.Image, []byte, error) {
	built := make([]string, len(im.binaries))
	for i, bin := range im.binaries {
		var err error
		if built[i], err = b.compile(ctx, im, bin, p); err != nil {
			return nil, nil, err
		}
	}
	var libs []entry
	if len(im.libs) > 0 || slices.ContainsFunc(im.binaries, func(bin binary) bool { return bin.cgo }) {
		var err error
		if libs, err = closure(os.DirFS(p.sysroot), p.triplet, im.libs, built...); err != nil {
			return nil, nil, err
		}
	}
	parts, err := b.parts(ctx, p, im, built, libs)
	if err != nil {
		return nil, nil, err
	}
	base := append(baseFiles(), libs...)
	for _, one := range parts {
		base = append(base, one.texts...)
	}
	layers := [][]entry{base}
	// The entrypoint changes with every commit and so comes last.
	for i := len(built) - 1; i >= 0; i-- {
		layers = append(layers, []entry{{name: im.binaries[i].path, mode: 0o755, source: built[i]}})
	}
	assembled, err := assemble(im, b.version, p, layers)
	if err != nil {
		return nil, nil, err
	}
	list, err := sbom(assembled, repository+"/"+im.name, b.version, parts, slices.Concat(layers...))
	return assembled, list, err
}

// compile builds one binary, stripped and without paths of this machine, and returns its path. It stays there for the
// next run, so that an unchanged one is not linked again. The first time it begins with that of make build, which mostly is the same.
func (b builder) compile(ctx context.Context, im image, bin binary, p platform) (string, error) {
	out, err := filepath.Abs(filepath.Join(b.out, "bin", p.arch, im.name, path.Base(bin.path)))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
		if program, err := os.ReadFile(filepath.Join(b.root, "bin", path.Base(bin.path))); err == nil {
			if err := errors.Join(os.MkdirAll(filepath.Dir(out), 0o755), os.WriteFile(out, program, 0o755)); err != nil {
				return "", err
			}
		}
	}
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
	if bin.cgo {
		// go-nvml resolves NVML's functions with dlopen; the default of some distributions' gcc, binding at start,
		// would make that fatal.
		extra := "-Wl,-z,lazy"
		if bin.static {
			extra += " -static"
		}
		if bin.soname != "" {
			extra += " -Wl,-soname," + bin.soname
		}
		ldflags += " '-extldflags=" + extra + "'"
	}
	mode := "exe"
	if bin.soname != "" {
		mode = "c-shared"
	}
	fmt.Fprintf(b.progress, "building %s for %s\n", bin.pkg, p.arch)
	_, err = b.goCommand(ctx, bin.dir, p.env(bin), "build", "-trimpath", "-buildvcs=false", buildTags,
		"-buildmode="+mode, "-ldflags="+ldflags, "-o", out, bin.pkg)
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

// writeTarball writes the image in the format of docker save.
func writeTarball(file string, tag name.Tag, im v1.Image) error {
	partial := file + ".partial"
	if err := tarball.WriteToFile(partial, tag, im); err != nil {
		_ = os.Remove(partial)
		return fmt.Errorf("cannot write %s: %w", file, err)
	}
	return os.Rename(partial, file)
}

// writeLayout writes an OCI image layout with one image or index. Its annotations name the image for containerd and for
// other programs.
func writeLayout(dir string, content mutate.Appendable, tag name.Tag) error {
	names := v1.Descriptor{Annotations: map[string]string{
		"io.containerd.image.name":          "docker.io/" + tag.String(),
		"org.opencontainers.image.ref.name": tag.Identifier(),
	}}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	one := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: content, Descriptor: names})
	if _, err := layout.Write(dir, one); err != nil {
		_ = os.RemoveAll(dir)
		return fmt.Errorf("cannot write %s: %w", dir, err)
	}
	return nil
}
