// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates and keys of one cluster, with a certificate authority of its own.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Identity is the content of a certificate.
type Identity struct {
	Name   string   // file name without suffix
	User   string   // common name: the user name that the API server sees
	Groups []string // organizations: the groups that it sees
	Hosts  []string // DNS names and IP addresses; none for a pure client
}

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
	PEM  []byte
}

// NewAuthority makes a certificate authority whose certificates are valid from an hour before now, for clocks that
// differ, to a year after.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(now, pkix.Name{CommonName: "onenode"})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key, now: now, PEM: block("CERTIFICATE", der)}, nil
}

// Sign makes a key and a certificate, both PEM, for a client and, with hosts, also for a server.
func (a *Authority) Sign(id Identity) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := template(a.now, pkix.Name{CommonName: id.User, Organization: id.Groups})
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(id.Hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range id.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign %s: %w", id.Name, err)
	}
	key, err = keyPEM(private)
	return block("CERTIFICATE", der), key, err
}

// Write writes the authority's certificate (ca.crt) and each identity's pair (<name>.crt, <name>.key) to dir.
func (a *Authority) Write(dir string, ids []Identity) error {
	files := map[string][]byte{"ca.crt": a.PEM}
	for _, id := range ids {
		cert, key, err := a.Sign(id)
		if err != nil {
			return err
		}
		files[id.Name+".crt"], files[id.Name+".key"] = cert, key
	}
	return write(dir, files)
}

// WriteServiceAccountKey writes a new pair of keys (sa.key, sa.pub) for tokens of service accounts to dir.
func WriteServiceAccountKey(dir string) error {
	sa, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(sa.Public())
	if err != nil {
		return err
	}
	key, err := keyPEM(sa)
	if err != nil {
		return err
	}
	return write(dir, map[string][]byte{"sa.pub": block("PUBLIC KEY", pub), "sa.key": key})
}

func write(dir string, files map[string][]byte) error {
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func template(now time.Time, subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		serial = big.NewInt(now.UnixNano())
	}
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0)}
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return block("EC PRIVATE KEY", der), err
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
