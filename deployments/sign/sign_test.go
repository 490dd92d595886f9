// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sign

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
	"github.com/sigstore/sigstore/pkg/signature/dsse"
)

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func verifier(t *testing.T, key *ecdsa.PrivateKey) cosign.Verifier {
	t.Helper()
	v, err := cosign.LoadVerifier(&key.PublicKey, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestStatement_OneKey_OnlyThatVerifies reads the envelope by the library of cosign.
func TestStatement_OneKey_OnlyThatVerifies(t *testing.T) {
	key, statement := newKey(t, elliptic.P256()), []byte(`{"_type":"https://in-toto.io/Statement/v1"}`)
	file, im, err := Statement(key, statement, "https://slsa.dev/provenance/v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := dsse.WrapVerifier(verifier(t, key)).VerifySignature(bytes.NewReader(file), nil); err != nil {
		t.Error(err)
	}
	if dsse.WrapVerifier(verifier(t, newKey(t, elliptic.P256()))).VerifySignature(bytes.NewReader(file), nil) == nil {
		t.Error("another key verifies the statement")
	}
	layers, err := im.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(layer, bytes.TrimSpace(file)) {
		t.Errorf("the image has %q, the file %q: %v", layer, file, err)
	}
	manifest, err := im.Manifest()
	if err != nil || manifest.Layers[0].MediaType != envelope || manifest.Layers[0].Annotations[predicateTypeNote] != "https://slsa.dev/provenance/v1" {
		t.Errorf("manifest = %+v, %v", manifest, err)
	}
}

func TestFile_OneKey_OnlyThatVerifies(t *testing.T) {
	key := newKey(t, elliptic.P256())
	text, err := File(key, []byte("sums"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := File(key, []byte("sums"))
	if err != nil || again != text {
		t.Errorf("a second signature is another one: %v", err)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier(t, key).VerifySignature(bytes.NewReader(raw), strings.NewReader("sums")); err != nil {
		t.Error(err)
	}
	if verifier(t, key).VerifySignature(bytes.NewReader(raw), strings.NewReader("other")) == nil {
		t.Error("the signature is of another file too")
	}
}

func TestTags_Digest_AsCosignExpects(t *testing.T) {
	digest := v1.Hash{Algorithm: "sha256", Hex: "ab"}
	if got := SignatureTag(digest) + " " + AttestationTag(digest); got != "sha256-ab.sig sha256-ab.att" {
		t.Errorf("tags = %s", got)
	}
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
			key, err := ReadKey(file)
			if c.ok && (err != nil || !key.Equal(p256)) {
				t.Errorf("key = %v, %v", key, err)
			}
			if !c.ok && (err == nil || !strings.Contains(err.Error(), "P-256")) {
				t.Errorf("error = %v", err)
			}
		})
	}
}
