// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The format of cosign: a layer is a payload that names the image's digest, its annotation is the payload's signature.
const (
	simpleSigning  types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureOfKey                 = "dev.cosignproject.cosign/signature"
	simplePayload                  = `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},` +
		`"type":"cosign container image signature"},"optional":null}`
)

// signature returns the image that cosign takes for the signature of digest, at the tag that signatureTag returns.
func signature(key *ecdsa.PrivateKey, repository string, digest v1.Hash) (v1.Image, error) {
	payload := fmt.Appendf(nil, simplePayload, repository, digest)
	sum := sha256.Sum256(payload)
	// Without a source of random numbers the signature is deterministic (RFC 6979).
	signed, err := key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("cannot sign %s: %w", digest, err)
	}
	return mutate.Append(oci(), mutate.Addendum{
		Layer:       static.NewLayer(payload, simpleSigning),
		Annotations: map[string]string{signatureOfKey: base64.StdEncoding.EncodeToString(signed)},
	})
}

func signatureTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".sig" }

// readKey reads a private key in PEM that no password protects.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	var parsed any
	if block, _ := pem.Decode(data); block != nil && block.Type == "EC PRIVATE KEY" {
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	} else if block != nil {
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%s is not an ECDSA key on P-256 without a password; make one with "+
			"openssl ecparam -name prime256v1 -genkey -noout", file)
	}
	return key, nil
}
