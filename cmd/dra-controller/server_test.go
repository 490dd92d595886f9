// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/cmd/dra-controller/flags"
	"gpu-dra-driver/pkg/cluster/controller"
)

// newPair returns a certificate that is its own authority, and the authority in PEM.
func newPair(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"webhook"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestServer_ClientAuthority_AnswersOnlyItsClients starts the webhook's server, and connects as API servers do.
func TestServer_ClientAuthority_AnswersOnlyItsClients(t *testing.T) {
	client, clients := newPair(t)
	stranger, _ := newPair(t)
	for _, c := range []struct {
		name, clientCA string
		certificates   []tls.Certificate
		answer         string
	}{
		{"no authority is needed", "", nil, "reviewed"},
		{"a client of the authority", clients, []tls.Certificate{client}, "reviewed"},
		{"a client without a certificate", clients, nil, controller.NoClientCertificate},
		{"a client of another authority", clients, []tls.Certificate{stranger}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, transport := startServer(t, map[string]http.Handler{
				"/admit": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reviewed") }),
			}, "WEBHOOK_CLIENT_CA="+c.clientCA)
			transport.TLSClientConfig.Certificates = c.certificates
			answer := ""
			response, err := (&http.Client{Transport: transport}).Post("https://"+address+"/admit", "application/json", strings.NewReader("{}"))
			if err == nil {
				defer response.Body.Close()
				body, _ := io.ReadAll(response.Body)
				answer = strings.TrimSpace(string(body))
			}
			if answer != c.answer || (err != nil) != (c.answer == "") {
				t.Errorf("answer %q, error %v", answer, err)
			}
		})
	}
}

// startServer serves handlers until the test ends. It returns its address, and a transport that trusts it.
func startServer(t *testing.T, handlers map[string]http.Handler, environ ...string) (address string, _ *http.Transport) {
	t.Helper()
	pair, authority := newPair(t)
	config, err := flags.Parse([]string{"--pod-namespace=n", "--webhook-service=s", "--webhook-configuration=c", "--cert-secret=s"}, environ)
	if err != nil {
		t.Fatal(err)
	}
	server, err := newWebhook(config, "127.0.0.1:0", func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, handlers)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "webhook"}}
	t.Cleanup(transport.CloseIdleConnections)
	return server.Listener.Addr().String(), transport
}
