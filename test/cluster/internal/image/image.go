// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package image makes image archives of a few files, such as the sandbox image of a pod and images for tests.
package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is a file of an image, or a symbolic link to Link.
type File struct {
	// Name is the path in the image, without a slash at its start.
	Name string
	// Source is the file with the content.
	Source, Link string
}

// Write writes a docker archive of an image that contains only the program, as its entry point /<base>, under the
// reference.
func Write(path, reference, program, base string) error {
	return WriteFiles(path, reference, "/"+base, File{Name: base, Source: program})
}

// WriteFiles writes a docker archive of an image with the files, each executable, under the reference. An image without
// an entry point needs a command from its pod.
func WriteFiles(path, reference, entrypoint string, files ...File) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, f := range files {
		if err := add(w, f); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.DockerLayer))
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, withEntrypoint(img, entrypoint))
	if err != nil {
		return err
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, img)
}

func add(w *tar.Writer, f File) error {
	if f.Link != "" {
		return w.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o777, Linkname: f.Link, Typeflag: tar.TypeSymlink})
	}
	content, err := os.ReadFile(f.Source)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

func withEntrypoint(img v1.Image, entrypoint string) *v1.ConfigFile {
	config, err := img.ConfigFile()
	if err != nil {
		config = &v1.ConfigFile{}
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if entrypoint != "" {
		config.Config.Entrypoint = []string{entrypoint}
	}
	return config
}
