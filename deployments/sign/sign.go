// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sign signs artifacts of a registry in the formats of cosign: an artifact's digest, and statements about it.
package sign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// The format of cosign: a layer is a payload that names the artifact's digest, its annotation is the payload's signature.
const (
	simpleSigning  types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureOfKey string          = "dev.cosignproject.cosign/signature"
	simplePayload                  = `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},` +
		`"type":"cosign container image signature"},"optional":null}`
)

// The format of cosign's attestations: a layer is an envelope with the signed statement. The annotation with the signature is
// empty, since the envelope has it.
const (
	envelope          types.MediaType = "application/vnd.dsse.envelope.v1+json"
	statementType     string          = "application/vnd.in-toto+json"
	predicateTypeNote string          = "predicateType"
)

// Digest returns the image that cosign takes for the signature of digest, at the tag that SignatureTag returns.
func Digest(key *ecdsa.PrivateKey, repository string, digest v1.Hash) (v1.Image, error) {
	payload := fmt.Appendf(nil, simplePayload, repository, digest)
	signed, err := signature(key, payload)
	if err != nil {
		return nil, fmt.Errorf("cannot sign %s: %w", digest, err)
	}
	return mutate.Append(oci(), mutate.Addendum{
		Layer:       static.NewLayer(payload, simpleSigning),
		Annotations: map[string]string{signatureOfKey: base64.StdEncoding.EncodeToString(signed)},
	})
}

// Statement returns an in-toto statement in a signed envelope (DSSE), and the image that cosign takes for an attestation. The
// image belongs at the tag that AttestationTag returns for the digest of a subject.
func Statement(key *ecdsa.PrivateKey, statement []byte, predicateType string) ([]byte, v1.Image, error) {
	signed, err := signature(key, dsse.PAE(statementType, statement))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot sign the statement of type %s: %w", predicateType, err)
	}
	file, err := json.Marshal(dsse.Envelope{
		PayloadType: statementType, Payload: base64.StdEncoding.EncodeToString(statement),
		Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(signed)}},
	})
	if err != nil {
		return nil, nil, err
	}
	im, err := mutate.Append(oci(), mutate.Addendum{
		Layer:       static.NewLayer(file, envelope),
		Annotations: map[string]string{signatureOfKey: "", predicateTypeNote: predicateType},
	})
	return append(file, '\n'), im, err
}

// File returns the signature of a file's content in base64, as `cosign verify-blob` and `openssl` read it.
func File(key *ecdsa.PrivateKey, content []byte) (string, error) {
	signed, err := signature(key, content)
	return base64.StdEncoding.EncodeToString(signed), err
}

// signature is deterministic (RFC 6979), since it takes no random numbers.
func signature(key *ecdsa.PrivateKey, content []byte) ([]byte, error) {
	sum := sha256.Sum256(content)
	return key.Sign(nil, sum[:], crypto.SHA256)
}

// SignatureTag returns the tag of the signature of a digest, in the repository of the artifact.
func SignatureTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".sig" }

// AttestationTag returns the tag of the attestations of a digest.
func AttestationTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".att" }

// oci returns an empty image with the media types of OCI.
func oci() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// ReadKey reads a private key in PEM that no password protects.
func ReadKey(file string) (*ecdsa.PrivateKey, error) {
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
