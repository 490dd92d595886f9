// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is a file or directory of an image. A directory's name ends in "/". The content is data, or the file source
// if that is set.
type entry struct {
	name   string
	mode   int64
	data   []byte
	source string
}

// baseFiles lists the few files that programs expect: users, the order of name look-ups, and a directory for
// temporary files.
func baseFiles() []entry {
	text := func(name, contents string) entry {
		return entry{name: name, mode: 0o644, data: []byte(contents)}
	}
	return []entry{
		text("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
		text("etc/group", "root:x:0:\nnonroot:x:65532:\n"),
		text("etc/nsswitch.conf", "hosts: files dns\n"),
		{name: "tmp/", mode: 0o1777},
	}
}

// tarLayer renders entries as a reproducible tar: sorted, parents first, owned by root, without times.
func tarLayer(entries []entry) ([]byte, error) {
	all := map[string]entry{}
	for _, e := range entries {
		if clean := path.Clean("/" + e.name)[1:]; clean != strings.TrimSuffix(e.name, "/") || clean == "" {
			return nil, fmt.Errorf("%q is not a path inside an image", e.name)
		}
		if _, twice := all[e.name]; twice {
			return nil, fmt.Errorf("%q is in the layer twice", e.name)
		}
		all[e.name] = e
		for dir := path.Dir(strings.TrimSuffix(e.name, "/")); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir+"/"]; !ok {
				all[dir+"/"] = entry{name: dir + "/", mode: 0o755}
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, n := range slices.Sorted(maps.Keys(all)) {
		if err := writeEntry(w, all[n]); err != nil {
			return nil, fmt.Errorf("cannot add %s: %w", n, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeEntry(w *tar.Writer, e entry) error {
	header := &tar.Header{Name: e.name, Mode: e.mode, Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if strings.HasSuffix(e.name, "/") {
		header.Typeflag = tar.TypeDir
		return w.WriteHeader(header)
	}
	data := e.data
	if e.source != "" {
		var err error
		if data, err = os.ReadFile(e.source); err != nil {
			return err
		}
	}
	header.Size = int64(len(data))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// oci returns an empty image with the media types of OCI.
func oci() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// assemble puts the layers under the image's configuration.
func assemble(im image, version string, p platform, layers [][]entry) (v1.Image, error) {
	base := oci()
	for _, entries := range layers {
		data, err := tarLayer(entries)
		if err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		if base, err = mutate.AppendLayers(base, layer); err != nil {
			return nil, err
		}
	}
	file, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", p.arch
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{
		User:       im.user,
		Env:        append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, im.env...),
		Entrypoint: []string{"/" + im.binaries[0].path},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    im.title,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(base, file)
}
