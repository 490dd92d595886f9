// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"
)

// Media types of Helm.
const (
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// setting is a value of the chart by its path.
type setting struct {
	path  []string
	value string
}

// describe adds what only a release knows to the text of Chart.yaml.
func (r release) describe(text []byte, list []change) ([]byte, error) {
	var chart map[string]any
	if err := kyaml.Unmarshal(text, &chart); err != nil {
		return nil, fmt.Errorf("unreadable Chart.yaml: %w", err)
	}
	chart["version"], chart["appVersion"] = r.version, r.version
	if r.home != "" {
		chart["home"] = r.home
	}
	if r.source != "" {
		chart["sources"] = []string{r.source}
	}
	annotations, _ := chart["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	chart["annotations"] = annotations
	annotations["artifacthub.io/prerelease"] = fmt.Sprint(strings.Contains(r.version, "-"))
	text, err := kyaml.Marshal(list)
	if err != nil {
		return nil, err
	}
	annotations["artifacthub.io/changes"] = string(text)
	if r.registry != "" {
		var named []map[string]any
		for _, im := range r.images {
			named = append(named, map[string]any{
				"name": im.name, "image": r.reference(im.repository) + ":" + r.version + "@" + im.digest.String(), "platforms": im.platforms(),
			})
		}
		if text, err = kyaml.Marshal(named); err != nil {
			return nil, err
		}
		annotations["artifacthub.io/images"] = string(text)
	}
	return kyaml.Marshal(chart)
}

// set writes values into the text of a values.yaml and leaves all else, comments included, as it is. The values must be empty
// strings there.
func set(text []byte, settings []setting) ([]byte, error) {
	lines := strings.Split(string(text), "\n")
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil || len(root.Content) == 0 {
		return nil, fmt.Errorf("unreadable values.yaml: %w", err)
	}
	for _, s := range settings {
		at := root.Content[0]
		for _, key := range s.path {
			at = member(at, key)
		}
		if at == nil || at.Kind != yaml.ScalarNode || at.Value != "" || at.Style != yaml.DoubleQuotedStyle {
			return nil, fmt.Errorf("the chart's values.yaml has no empty value %s to write %s to", strings.Join(s.path, "."), s.value)
		}
		line := lines[at.Line-1]
		// Columns count characters, and the keys are ASCII.
		lines[at.Line-1] = line[:at.Column-1] + fmt.Sprintf("%q", s.value) + strings.TrimPrefix(line[at.Column-1:], `""`)
	}
	return []byte(strings.Join(lines, "\n")), nil
}

// member returns the value of a key in a YAML mapping, or nil.
func member(of *yaml.Node, key string) *yaml.Node {
	if of == nil || of.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(of.Content); i += 2 {
		if of.Content[i].Value == key {
			return of.Content[i+1]
		}
	}
	return nil
}

// pack packages the chart of the tree with Helm, and returns the archive and the config of its OCI artifact. The archive has no
// time of this machine.
func (r release) pack(ctx context.Context, list []change) (archive, config []byte, err error) {
	stage, err := os.MkdirTemp("", "release-chart-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	dir := filepath.Join(stage, chartName)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(r.root, "deployments/helm", chartName))); err != nil {
		return nil, nil, fmt.Errorf("cannot copy the chart: %w", err)
	}
	var settings []setting
	if r.registry != "" {
		settings = append(settings, setting{[]string{"image", "registry"}, r.registry})
	}
	for _, im := range r.images {
		settings = append(settings, setting{im.value, im.digest.String()})
	}
	for name, change := range map[string]func([]byte) ([]byte, error){
		"Chart.yaml":  func(text []byte) ([]byte, error) { return r.describe(text, list) },
		"values.yaml": func(text []byte) ([]byte, error) { return set(text, settings) },
	} {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		if text, err = change(text); err != nil {
			return nil, nil, err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "hack/tool.sh"), "helm", "package", dir, "--destination", stage)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("helm package: %w\n%s", err, out)
	}
	packed, err := os.ReadFile(filepath.Join(stage, chartName+"-"+r.version+".tgz"))
	if err != nil {
		return nil, nil, fmt.Errorf("helm package: %w", err)
	}
	return timeless(packed)
}

// timeless returns a chart's archive without times and owners, and the JSON of its Chart.yaml.
func timeless(packed []byte) (archive, config []byte, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, nil, fmt.Errorf("unreadable archive of the chart: %w", err)
	}
	var out bytes.Buffer
	zipped, in := gzip.NewWriter(&out), tar.NewReader(unzipped)
	w := tar.NewWriter(zipped)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("unreadable archive of the chart: %w", err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return nil, nil, fmt.Errorf("unreadable archive of the chart: %w", err)
		}
		plain := &tar.Header{Name: h.Name, Typeflag: h.Typeflag, Mode: h.Mode, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(plain); err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, nil, err
		}
		if h.Name == chartName+"/Chart.yaml" {
			var chart map[string]any
			if err := kyaml.Unmarshal(data, &chart); err != nil {
				return nil, nil, fmt.Errorf("unreadable Chart.yaml: %w", err)
			}
			if config, err = json.Marshal(chart); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), config, nil
}

// chartImage returns the chart in the form that a registry stores.
func (r release) chartImage(archive, config []byte) (v1.Image, error) {
	return artifact{
		configType: chartConfig, config: config, fileType: chartContent, file: archive,
		annotations: map[string]string{
			"org.opencontainers.image.title": chartName, "org.opencontainers.image.version": r.version,
		},
	}.image()
}
