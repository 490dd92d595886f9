// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"
)

func TestWrite_Identities_CertificatesVerify(t *testing.T) {
	dir := t.TempDir()
	a, err := NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ids := []Identity{
		{Name: "server", User: "srv", Hosts: []string{"127.0.0.1", "kubernetes.default.svc"}},
		{Name: "client", User: "admin", Groups: []string{"system:masters"}},
	}
	if err := a.Write(dir, ids); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM)
	load := func(name string) *x509.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf
	}
	server, client := load("server"), load("client")
	for _, host := range []string{"127.0.0.1", "kubernetes.default.svc"} {
		if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("server as %s: %v", host, err)
		}
	}
	if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.0.0.1"}); err == nil {
		t.Error("the server's certificate passes for a host that it does not name")
	}
	asClient := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := client.Verify(asClient); err != nil {
		t.Errorf("client: %v", err)
	}
	if _, err := client.Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("a client without hosts passes for a server")
	}
	if s := client.Subject; s.CommonName != "admin" || len(s.Organization) != 1 || s.Organization[0] != "system:masters" {
		t.Errorf("client's subject is %v", s)
	}
}
