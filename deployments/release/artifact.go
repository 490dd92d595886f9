// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// artifact is a file in a registry: a chart, an SBOM or a statement.
type artifact struct {
	kind        string          // artifactType of a referrer; empty for a chart
	configType  types.MediaType // of config
	config      []byte
	fileType    types.MediaType // of file
	file        []byte
	annotations map[string]string
	subject     *v1.Descriptor // that the artifact is about; nil for a chart
}

// image returns the artifact in the form that a registry stores.
func (a artifact) image() (v1.Image, error) {
	describe := func(data []byte, media types.MediaType) (v1.Descriptor, error) {
		digest, size, err := v1.SHA256(bytes.NewReader(data))
		return v1.Descriptor{MediaType: media, Digest: digest, Size: size}, err
	}
	config, err := describe(a.config, a.configType)
	if err != nil {
		return nil, err
	}
	layer, err := describe(a.file, a.fileType)
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: a.kind, Config: config,
		Layers: []v1.Descriptor{layer}, Annotations: a.annotations, Subject: a.subject,
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(stored{manifest: manifest, config: a.config, layer: static.NewLayer(a.file, a.fileType)})
}

// stored implements partial.CompressedImageCore for a config that is not one of an image.
type stored struct {
	manifest, config []byte
	layer            v1.Layer
}

func (s stored) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (s stored) RawManifest() ([]byte, error)        { return s.manifest, nil }
func (s stored) RawConfigFile() ([]byte, error)      { return s.config, nil }

func (s stored) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if own, err := s.layer.Digest(); err != nil || own != digest {
		return nil, fmt.Errorf("the artifact has no layer %s: %w", digest, err)
	}
	return s.layer, nil
}
