// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The authority's keys in the Secret, beside corev1.TLSCertKey and corev1.TLSPrivateKeyKey.
const (
	authorityCertKey = "ca.crt"
	authorityKeyKey  = "ca.key"
)

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is renewed.
	renewBefore = 90 * 24 * time.Hour
	// maxAuthorities bounds the bundle, in case somebody replaces the Secret again and again.
	maxAuthorities = 4
)

// renewed returns the data of a Secret whose certificate is valid for the host for another renewBefore, and whether that
// differs from the given data. An authority that is valid is kept, because API servers trust it already.
func renewed(data map[string][]byte, host string) (out map[string][]byte, changed bool, err error) {
	later := time.Now().Add(renewBefore)
	ca, err := tls.X509KeyPair(data[authorityCertKey], data[authorityKeyKey])
	fresh := err != nil || !ca.Leaf.IsCA || later.After(ca.Leaf.NotAfter)
	if !fresh && servesAt(later, data, ca.Leaf, host) {
		return data, false, nil
	}
	if out = maps.Clone(data); out == nil {
		out = map[string][]byte{}
	}
	if fresh {
		out[authorityCertKey], out[authorityKeyKey], err = issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: host + " CA", Organization: []string{"gpu-dra-driver"}}, IsCA: true,
			KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		}, authorityLifetime, nil)
		if err != nil {
			return nil, false, err
		}
		if ca, err = tls.X509KeyPair(out[authorityCertKey], out[authorityKeyKey]); err != nil {
			return nil, false, err
		}
	}
	out[corev1.TLSCertKey], out[corev1.TLSPrivateKeyKey], err = issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, certificateLifetime, &ca)
	return out, true, err
}

// servesAt reports whether a client that trusts the authority accepts the certificate at that time.
func servesAt(at time.Time, data map[string][]byte, authority *x509.Certificate, host string) bool {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: at})
	return err == nil
}

// issue returns a certificate and its key in PEM. Without an authority the certificate signs itself.
func issue(template *x509.Certificate, lifetime time.Duration, authority *tls.Certificate) (cert, key []byte, err error) {
	// An hour of grace for clocks that are behind.
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(lifetime)
	template.BasicConstraintsValid = true
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	parent, signer := template, any(private)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	certDER, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// bundle returns the authority followed by those of the old bundle that are still valid: an instance may serve a
// certificate of theirs for a moment longer.
func bundle(authority, old []byte) []byte {
	authority = append(bytes.TrimSpace(authority), '\n')
	out := bytes.Clone(authority)
	for n := 1; n < maxAuthorities; {
		var block *pem.Block
		if block, old = pem.Decode(old); block == nil {
			break
		}
		text := pem.EncodeToMemory(block)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || time.Now().After(cert.NotAfter) || bytes.Equal(text, authority) {
			continue
		}
		out = append(out, text...)
		n++
	}
	return out
}
