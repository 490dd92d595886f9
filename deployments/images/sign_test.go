// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
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
	if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != simpleSigning {
		t.Fatalf("manifest = %+v, %v", manifest, err)
	}
	signed := blob(t, im)
	var said payload.Cosign
	if err := said.UnmarshalJSON(signed); err != nil || said.Image.DigestStr() != r.digest.String() {
		t.Errorf("signed is %v, want %v: %v", said, r.digest, err)
	}
	signature := manifest.Layers[0].Annotations[signatureOfKey]
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

func TestReadKey_Files_ReadOrRefused(t *testing.T) {
	sec1 := func(key *ecdsa.PrivateKey) []byte { der, _ := x509.MarshalECPrivateKey(key); return der }
	pkcs8 := func(key any) []byte { der, _ := x509.MarshalPKCS8PrivateKey(key); return der }
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p256, p384 := newKey(t, elliptic.P256()), newKey(t, elliptic.P384())
	for _, c := range []struct {
		name, kind string
		der        []byte
		ok         bool
	}{
		{"SEC 1", "EC PRIVATE KEY", sec1(p256), true},
		{"PKCS 8", "PRIVATE KEY", pkcs8(p256), true},
		{"another curve", "EC PRIVATE KEY", sec1(p384), false},
		{"RSA", "PRIVATE KEY", pkcs8(rsaKey), false},
		{"encrypted by cosign", "ENCRYPTED SIGSTORE PRIVATE KEY", []byte("{}"), false},
		{"no PEM", "", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := []byte("key")
			if c.der != nil {
				data = pem.EncodeToMemory(&pem.Block{Type: c.kind, Bytes: c.der})
			}
			file := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			key, err := readKey(file)
			if c.ok && (err != nil || !key.Equal(p256)) {
				t.Errorf("key = %v, %v", key, err)
			}
			if !c.ok && (err == nil || !strings.Contains(err.Error(), "P-256")) {
				t.Errorf("error = %v", err)
			}
		})
	}
}
