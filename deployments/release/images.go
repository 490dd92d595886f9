// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"go.yaml.in/yaml/v3"
)

// image is a built image of the release.
type image struct {
	name       string   // last part of the repository and of the file name
	repository string   // without a registry
	value      []string // path of the digest in the chart's values
	digest     v1.Hash
	index      v1.ImageIndex
	manifests  []v1.Descriptor // one for each platform
}

// platforms returns the platforms as in linux/amd64, sorted.
func (im image) platforms() []string {
	var list []string
	for _, m := range im.manifests {
		list = append(list, m.Platform.OS+"/"+m.Platform.Architecture)
	}
	slices.Sort(list)
	return list
}

// readImages finds the images of which the file has digests, and which the chart's values name, in the OCI layouts that make images
// wrote to dist.
func readImages(dist, version, file string, values []byte) ([]image, error) {
	text, err := os.ReadFile(filepath.Join(dist, file))
	if err != nil {
		return nil, fmt.Errorf("the digests of the images are missing; run make images-all: %w", err)
	}
	var digests, chart yaml.Node
	if err := errors.Join(yaml.Unmarshal(text, &digests), yaml.Unmarshal(values, &chart)); err != nil || len(digests.Content) == 0 || len(chart.Content) == 0 {
		return nil, fmt.Errorf("unreadable %s, or values of the chart: %w", file, err)
	}
	var list []image
	var visit func(at *yaml.Node, path []string) error
	visit = func(at *yaml.Node, path []string) error {
		for i := 0; i < len(at.Content); i += 2 {
			below := append(slices.Clone(path), at.Content[i].Value)
			if at.Content[i+1].Kind == yaml.MappingNode {
				if err := visit(at.Content[i+1], below); err != nil {
					return err
				}
				continue
			}
			beside := chart.Content[0]
			for _, key := range path {
				beside = member(beside, key)
			}
			repository := member(beside, "repository")
			if repository == nil {
				return fmt.Errorf("the chart has no repository beside %s", strings.Join(below, "."))
			}
			im := image{name: filepath.Base(repository.Value), repository: repository.Value, value: below}
			if err := im.read(dist, version, file, at.Content[i+1].Value); err != nil {
				return fmt.Errorf("image %s: %w", im.name, err)
			}
			list = append(list, im)
		}
		return nil
	}
	if err := visit(digests.Content[0], nil); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b image) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// read opens the layout of an image, which must have the digest.
func (im *image) read(dist, version, file, digest string) error {
	dir := filepath.Join(dist, im.name+"-"+version)
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("cannot read %s; run make images-all with the same VERSION: %w", dir, err)
	}
	outer, err := all.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 {
		return fmt.Errorf("%s has not one index: %w", dir, err)
	}
	im.digest = outer.Manifests[0].Digest
	if im.digest.String() != digest {
		return fmt.Errorf("%s has the digest %s, and %s %s: build the images again", dir, im.digest, file, digest)
	}
	if im.index, err = all.ImageIndex(im.digest); err != nil {
		return fmt.Errorf("cannot read the index of %s: %w", dir, err)
	}
	inner, err := im.index.IndexManifest()
	if err != nil {
		return fmt.Errorf("cannot read the index of %s: %w", dir, err)
	}
	for _, m := range inner.Manifests {
		if m.Platform == nil {
			return fmt.Errorf("%s: the manifest %s has no platform", dir, m.Digest)
		}
	}
	im.manifests = inner.Manifests
	return nil
}
