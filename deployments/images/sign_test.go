// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	cosign "github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// verify checks a signature by the library of cosign.
func verify(t *testing.T, key *ecdsa.PublicKey, signature string, signed []byte) error {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := cosign.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return verifier.VerifySignature(bytes.NewReader(raw), bytes.NewReader(signed))
}

func TestRelease_WithKey_SignatureVerifies(t *testing.T) {
	key := newKey(t, elliptic.P256())
	b := toyBuilder(t)
	b.key = key
	r := release(t, b, plainToy, "amd64,arm64")
	file := filepath.Join(b.out, "toy-v1.2.3.sig")
	at := content(t, file)
	if tag := "sha256-" + r.digest.Hex + ".sig"; at.Annotations["org.opencontainers.image.ref.name"] != tag {
		t.Errorf("the signature is at %v, want %s", at.Annotations, tag)
	}
	im, err := index(t, file).Image(at.Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := im.Manifest()
	if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
		t.Fatalf("manifest = %+v, %v", manifest, err)
	}
	signed := blob(t, im)
	var said payload.Cosign
	if err := said.UnmarshalJSON(signed); err != nil || said.Image.DigestStr() != r.digest.String() {
		t.Errorf("signed is %v, want %v: %v", said, r.digest, err)
	}
	signature := manifest.Layers[0].Annotations["dev.cosignproject.cosign/signature"]
	if err := verify(t, &key.PublicKey, signature, signed); err != nil {
		t.Error(err)
	}
	if err := verify(t, &newKey(t, elliptic.P256()).PublicKey, signature, signed); err == nil {
		t.Error("another key verifies the signature")
	}
	other := bytes.Replace(signed, []byte(r.digest.Hex), []byte(strings.Repeat("0", 64)), 1)
	if err := verify(t, &key.PublicKey, signature, other); err == nil {
		t.Error("the signature is of another digest too")
	}
	b.key = nil
	release(t, b, plainToy, "amd64,arm64")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the earlier signature is still there: %v", err)
	}
}

// blob returns the only layer of an image.
func blob(t *testing.T, im v1.Image) []byte {
	t.Helper()
	layers, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
