// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"gpu-dra-driver/test/cluster/internal/manifest"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// prober queries the health of components and of the API server.
type prober struct {
	node string       // the name of the node for nodeReady
	api  *http.Client // with the administrator's certificate
	// local skips verification: scheduler and controller manager serve with self-signed certificates, on the
	// cluster's own loopback device.
	local *http.Client
	// containerd speaks HTTP/2 without TLS over its socket, as gRPC does.
	containerd *http.Client
}

func newProber(s spec.Spec) (*prober, error) {
	cert, err := tls.LoadX509KeyPair(s.PKI("admin.crt"), s.PKI("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(s.PKI("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := func(c *tls.Config) *http.Client {
		return &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{TLSClientConfig: c}}
	}
	var cleartext http.Protocols
	cleartext.SetUnencryptedHTTP2(true)
	return &prober{
		node:  s.NodeName(),
		api:   client(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}),
		local: client(&tls.Config{InsecureSkipVerify: true}),
		containerd: &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
			Protocols: &cleartext, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", spec.ContainerdSocket)
			},
		}},
	}, nil
}

// wait polls until the component is healthy or the context ends; the error is then the last answer's.
func (p *prober) wait(ctx context.Context, c manifest.Component) error {
	return poll(ctx, func() error {
		switch c.Name {
		case "containerd":
			return p.criReady(ctx)
		case "kube-apiserver":
			_, err := get(ctx, p.api, c.Health)
			return err
		default:
			_, err := get(ctx, p.local, c.Health)
			return err
		}
	})
}

// criReady calls the method that a starting kubelet calls first; the kubelet ends if it fails. containerd's socket exists
// before its CRI service is initialized.
func (p *prober) criReady(ctx context.Context) error {
	const method = "/runtime.v1.RuntimeService/Version"
	empty := make([]byte, 5) // gRPC's header of an empty message.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://containerd"+method, bytes.NewReader(empty))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	response, err := p.containerd.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	// An error without a message comes as headers only.
	status := cmp.Or(response.Trailer.Get("Grpc-Status"), response.Header.Get("Grpc-Status"))
	if status != "0" {
		return fmt.Errorf("containerd answers %s with gRPC status %q: %s", method, status,
			cmp.Or(response.Trailer.Get("Grpc-Message"), response.Header.Get("Grpc-Message")))
	}
	return nil
}

// nodeReady returns nil when the node object is Ready and, unless bootID is empty, has that boot ID.
func (p *prober) nodeReady(ctx context.Context, bootID string) error {
	b, err := get(ctx, p.api, apiURL("/api/v1/nodes/"+p.node))
	if err != nil {
		return err
	}
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
			NodeInfo   struct{ BootID string }
		}
	}
	if err := json.Unmarshal(b, &node); err != nil {
		return err
	}
	if bootID != "" && node.Status.NodeInfo.BootID != bootID {
		return fmt.Errorf("node %s has not reported boot ID %s", p.node, bootID)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		} else if c.Type == "Ready" {
			err = errors.New(c.Message)
		}
	}
	return fmt.Errorf("node %s is not Ready: %w", p.node, err)
}

// apiServerReady returns nil when the API server, possibly on another node, works.
func (p *prober) apiServerReady(ctx context.Context) error {
	_, err := get(ctx, p.api, apiURL("/readyz"))
	return err
}

// defaultServiceAccount returns nil when pods can be created in the default namespace.
func (p *prober) defaultServiceAccount(ctx context.Context) error {
	_, err := get(ctx, p.api, apiURL("/api/v1/namespaces/default/serviceaccounts/default"))
	return err
}

func apiURL(path string) string { return "https://127.0.0.1:" + spec.APIServerPort + path }

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %.300s", url, response.Status, b)
	}
	return b, nil
}

// poll retries until success or the end of the context, and then returns the last real error.
func poll(ctx context.Context, try func() error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) || last == nil {
			last = err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return last
		}
	}
}
