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

// chart is a chart of the release.
type chart struct {
	name    string
	images  []image
	archive []byte // as Helm packages it
	stored  v1.Image
	digest  v1.Hash // of stored
}

// repository is the chart's, without the registry.
func (c chart) repository() string { return "charts/" + c.name }

// digests is the file with the digests of the chart's images, as make images writes it.
func (c chart) digests() string { return "digests-" + c.name + ".yaml" }

// sources is the chart's directory in the tree.
func (r release) sources(c chart) string { return filepath.Join(r.root, "deployments/helm", c.name) }

// readChart finds a chart's images.
func (r release) readChart(name string) (chart, error) {
	c := chart{name: name}
	values, err := os.ReadFile(filepath.Join(r.sources(c), "values.yaml"))
	if err != nil {
		return c, err
	}
	c.images, err = readImages(r.dist, r.version, c.digests(), values)
	return c, err
}

// setting is a value of the chart by its path.
type setting struct {
	path  []string
	value string
}

// describe adds what only a release knows to the text of Chart.yaml.
func (r release) describe(c chart, text []byte, list []change) ([]byte, error) {
	var head map[string]any
	if err := kyaml.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("unreadable Chart.yaml: %w", err)
	}
	head["version"], head["appVersion"] = r.version, r.version
	if r.home != "" {
		head["home"] = r.home
	}
	if r.source != "" {
		head["sources"] = []string{r.source}
	}
	annotations, _ := head["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	head["annotations"] = annotations
	annotations["artifacthub.io/prerelease"] = fmt.Sprint(strings.Contains(r.version, "-"))
	text, err := kyaml.Marshal(list)
	if err != nil {
		return nil, err
	}
	annotations["artifacthub.io/changes"] = string(text)
	if r.registry != "" {
		var named []map[string]any
		for _, im := range c.images {
			named = append(named, map[string]any{
				"name": im.name, "image": r.reference(im.repository) + ":" + r.version + "@" + im.digest.String(), "platforms": im.platforms(),
			})
		}
		if text, err = kyaml.Marshal(named); err != nil {
			return nil, err
		}
		annotations["artifacthub.io/images"] = string(text)
	}
	return kyaml.Marshal(head)
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

// pack packages a chart with Helm, and makes the form of it that a registry stores. The archive has no time of this machine.
func (r release) pack(ctx context.Context, c *chart, list []change) (err error) {
	stage, err := os.MkdirTemp("", "release-chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	dir := filepath.Join(stage, c.name)
	if err := os.CopyFS(dir, os.DirFS(r.sources(*c))); err != nil {
		return fmt.Errorf("cannot copy the chart %s: %w", c.name, err)
	}
	var settings []setting
	if r.registry != "" {
		settings = append(settings, setting{[]string{"image", "registry"}, r.registry})
	}
	for _, im := range c.images {
		settings = append(settings, setting{im.value, im.digest.String()})
	}
	for name, change := range map[string]func([]byte) ([]byte, error){
		"Chart.yaml":  func(text []byte) ([]byte, error) { return r.describe(*c, text, list) },
		"values.yaml": func(text []byte) ([]byte, error) { return set(text, settings) },
	} {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if text, err = change(text); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "hack/tool.sh"), "helm", "package", dir, "--destination", stage)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm package: %w\n%s", err, out)
	}
	packed, err := os.ReadFile(filepath.Join(stage, c.name+"-"+r.version+".tgz"))
	if err != nil {
		return fmt.Errorf("helm package: %w", err)
	}
	archive, config, err := timeless(packed, c.name)
	if err != nil {
		return err
	}
	c.archive = archive
	c.stored, err = artifact{
		configType: chartConfig, config: config, fileType: chartContent, file: c.archive,
		annotations: map[string]string{
			"org.opencontainers.image.title": c.name, "org.opencontainers.image.version": r.version,
		},
	}.image()
	if err != nil {
		return err
	}
	c.digest, err = c.stored.Digest()
	return err
}

// timeless returns a chart's archive without times and owners, and the JSON of its Chart.yaml.
func timeless(packed []byte, name string) (archive, config []byte, err error) {
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
		if h.Name == name+"/Chart.yaml" {
			var head map[string]any
			if err := kyaml.Unmarshal(data, &head); err != nil {
				return nil, nil, fmt.Errorf("unreadable Chart.yaml: %w", err)
			}
			if config, err = json.Marshal(head); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), config, nil
}
