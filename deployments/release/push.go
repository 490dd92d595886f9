// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"gpu-dra-driver/deployments/sign"
)

const (
	sbomType      = "application/spdx+json"
	statementType = "application/vnd.in-toto+json"
)

// onThisMachine reports whether a registry such as localhost:5000/team is one of this machine.
func onThisMachine(registry string) bool {
	first, _, _ := strings.Cut(registry, "/")
	host, _, err := net.SplitHostPort(first)
	if err != nil {
		host = first
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// pusher writes to a registry. It takes credentials from the configuration of docker.
type pusher struct {
	release
	options []remote.Option
	err     error // the first one
}

// push writes the release to the registry: images first, so that a chart never names an image that is not there. A version
// that the registry has with other content is refused.
func (r release) push(ctx context.Context, statement []byte) error {
	p := &pusher{release: r, options: []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
	}}
	for _, im := range r.images() {
		p.checkFree(im.repository, im.digest)
	}
	for _, c := range r.charts {
		p.checkFree(c.repository(), c.digest)
	}
	for _, im := range r.images() {
		p.write(im.repository, r.version, im.index)
		for _, m := range im.manifests {
			list, err := os.ReadFile(filepath.Join(r.dist, im.sbom(r.version, m)))
			if err != nil {
				return fmt.Errorf("the SBOM of %s is missing; build the images again: %w", im.name, err)
			}
			p.refer(im.repository, m, sbomType, list)
		}
		size, err := im.index.Size()
		if err != nil {
			return err
		}
		p.vouch(im.repository, v1.Descriptor{MediaType: types.OCIImageIndex, Digest: im.digest, Size: size}, statement)
	}
	for _, c := range r.charts {
		size, err := c.stored.Size()
		if err != nil {
			return err
		}
		p.write(c.repository(), r.version, c.stored)
		p.vouch(c.repository(), v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: c.digest, Size: size}, statement)
	}
	return p.err
}

// checkFree fails if the registry has the version of a repository with another digest.
func (p *pusher) checkFree(repository string, digest v1.Hash) {
	ref := p.parse(repository, p.version)
	if p.err != nil {
		return
	}
	there, err := remote.Head(ref, p.options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return
	}
	if err != nil {
		p.err = fmt.Errorf("cannot ask for %s: %w", ref, err)
	} else if there.Digest != digest {
		p.err = fmt.Errorf("%s is there already, as %s: a released version does not change. Release another version", ref, there.Digest)
	}
}

// vouch adds the provenance of an artifact, and with a key its signature and the signed provenance.
func (p *pusher) vouch(repository string, of v1.Descriptor, statement []byte) {
	p.refer(repository, of, statementType, statement)
	if p.key == nil || p.err != nil {
		return
	}
	ref := p.parse(repository, p.version)
	if p.err != nil {
		return
	}
	signature, err := sign.Digest(p.key, ref.Context().Name(), of.Digest)
	if err != nil {
		p.err = err
		return
	}
	_, attestation, err := sign.Statement(p.key, statement, predicateType)
	if err != nil {
		p.err = err
		return
	}
	p.write(repository, sign.SignatureTag(of.Digest), signature)
	p.write(repository, sign.AttestationTag(of.Digest), attestation)
}

// refer adds a file about an artifact.
func (p *pusher) refer(repository string, of v1.Descriptor, kind string, file []byte) {
	about := v1.Descriptor{MediaType: of.MediaType, Digest: of.Digest, Size: of.Size}
	im, err := artifact{
		kind: kind, configType: "application/vnd.oci.empty.v1+json", config: []byte("{}"), fileType: types.MediaType(kind), file: file,
		subject: &about,
	}.image()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	digest, err := im.Digest()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	p.write(repository, digest.String(), im)
}

// write pushes an artifact to a tag or digest.
func (p *pusher) write(repository, at string, what remote.Taggable) {
	if p.err != nil {
		return
	}
	ref := p.parse(repository, at)
	if p.err != nil {
		return
	}
	if err := remote.Push(ref, what, p.options...); err != nil {
		p.err = fmt.Errorf("cannot push %s: %w", ref, err)
		return
	}
	fmt.Fprintln(p.progress, "pushed", ref)
}

// parse returns the reference of a tag or digest, or notes the error.
func (p *pusher) parse(repository, at string) name.Reference {
	separator := ":"
	if strings.HasPrefix(at, "sha256:") {
		separator = "@"
	}
	ref, err := name.ParseReference(p.reference(repository)+separator+at, name.StrictValidation)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("REGISTRY=%s: %w", p.registry, err)
	}
	return ref
}
