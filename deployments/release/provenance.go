// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	predicateType = "https://slsa.dev/provenance/v1"
	// buildType names the meaning of the parameters. The project has no address of its own, so it is a name.
	buildType = "urn:gpu-dra-driver:make-release:v1"
)

// subject is an artifact of the release, by its name and SHA-256 in hexadecimal.
type subject struct{ name, sha256 string }

// tree is the state of the sources.
type tree struct {
	commit string
	dirty  bool // has changes that are not committed
	locks  []subject
}

// readTree asks git for the commit, and reads the go.sum of each module that ships.
func readTree(ctx context.Context, root string) (tree, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s, for the provenance: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	var t tree
	var err error
	if t.commit, err = git("rev-parse", "HEAD"); err != nil {
		return tree{}, err
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return tree{}, err
	}
	t.dirty = changed != ""
	for _, file := range []string{"go.sum", "deployments/go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return tree{}, fmt.Errorf("the checksums of the modules, for the provenance: %w", err)
		}
		t.locks = append(t.locks, subject{file, fmt.Sprintf("%x", sha256.Sum256(data))})
	}
	return t, nil
}

// statement returns the provenance of the subjects as an in-toto statement in JSON.
func (r release) statement(t tree, subjects []subject) ([]byte, error) {
	resource := func(s subject) *intoto.ResourceDescriptor {
		return &intoto.ResourceDescriptor{Name: s.name, Digest: map[string]string{"sha256": s.sha256}}
	}
	source := &intoto.ResourceDescriptor{Name: "source", Digest: map[string]string{"gitCommit": t.commit}}
	if r.source != "" {
		source.Uri = "git+" + r.source
	}
	if t.dirty {
		note, err := structpb.NewStruct(map[string]any{"uncommittedChanges": true})
		if err != nil {
			return nil, err
		}
		source.Annotations = note
	}
	materials := []*intoto.ResourceDescriptor{source}
	for _, one := range t.locks {
		materials = append(materials, resource(one))
	}
	parameters, err := structpb.NewStruct(map[string]any{"version": r.version, "registry": r.registry})
	if err != nil {
		return nil, err
	}
	build := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: buildType, ExternalParameters: parameters, ResolvedDependencies: materials,
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{
			Id: r.builder, Version: map[string]string{"go": runtime.Version()},
		}},
	}
	if err := build.Validate(); err != nil {
		return nil, fmt.Errorf("the provenance is not valid: %w", err)
	}
	text, err := protojson.Marshal(build)
	if err != nil {
		return nil, err
	}
	predicate := &structpb.Struct{}
	if err := protojson.Unmarshal(text, predicate); err != nil {
		return nil, err
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: predicateType, Predicate: predicate}
	for _, one := range subjects {
		statement.Subject = append(statement.Subject, resource(one))
	}
	if err := statement.Validate(); err != nil {
		return nil, fmt.Errorf("the provenance is not valid: %w", err)
	}
	if text, err = protojson.Marshal(statement); err != nil {
		return nil, err
	}
	// The library puts blanks at random.
	var plain bytes.Buffer
	err = json.Indent(&plain, text, "", "  ")
	return append(plain.Bytes(), '\n'), err
}
