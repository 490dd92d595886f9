// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Write is a client's change.
type Write struct {
	// At is the time at which the server had stored it.
	At             time.Time
	What, Resource string
	Object         metav1.Object
}

// Server is an API server.
type Server struct {
	// WithoutWatchList rejects lists by watch, as servers before 1.34 do.
	WithoutWatchList bool
	// Metrics serves the metrics of pods, which clients read through the proxy of the API server.
	Metrics func(w http.ResponseWriter, r *http.Request, pod string)

	collections map[string]*collection
	stamps      map[string][]*stamp
	pair        Pair
	http        *http.Server
	address     string
	done        chan struct{}
	requests    atomic.Int64

	mu      sync.Mutex
	version int64
	writes  []Write
	wrote   chan struct{}
}

// New makes a server of an empty cluster.
func New() (*Server, error) {
	pair, err := NewPair("127.0.0.1")
	if err != nil {
		return nil, err
	}
	s := &Server{
		pair: pair, collections: map[string]*collection{}, stamps: map[string][]*stamp{},
		version: firstVersion, wrote: make(chan struct{}), done: make(chan struct{}),
	}
	for _, c := range []*collection{
		newCollection("resource.k8s.io/v1", "ResourceSlice", "resourceslices"),
		newCollection("resource.k8s.io/v1", "DeviceClass", "deviceclasses"),
		newCollection("resource.k8s.io/v1", "ResourceClaim", "resourceclaims"),
		newCollection("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
		newCollection("coordination.k8s.io/v1", "Lease", "leases"),
		newCollection("v1", "Node", "nodes"),
		newCollection("v1", "Pod", "pods"),
		newCollection("v1", "Secret", "secrets"),
		newCollection("v1", "Event", "events"),
	} {
		s.collections[c.kind.APIVersion+"/"+c.resource] = c
	}
	return s, nil
}

func (s *Server) of(resource string) *collection {
	for _, c := range s.collections {
		if c.resource == resource {
			return c
		}
	}
	panic("fleetserver: no resource " + resource)
}

// Start serves on a loopback port until Close.
func (s *Server) Start() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve a fleet: %w", err)
	}
	certificate, err := tls.X509KeyPair(s.pair.Cert, s.pair.Key)
	if err != nil {
		return errors.Join(fmt.Errorf("serve a fleet: %w", err), listener.Close())
	}
	s.address = listener.Addr().String()
	s.http = &http.Server{
		Handler: s, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = s.http.ServeTLS(listener, "", "") }() // It returns an error after Close.
	return nil
}

// Requests is the number of requests so far.
func (s *Server) Requests() int64 { return s.requests.Load() }

// Close stops the server and ends every watch.
func (s *Server) Close() error {
	close(s.done)
	return s.http.Close()
}

// Kubeconfig writes a file for clients.
func (s *Server) Kubeconfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: fleet, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: fleet, user: {token: none}}]
contexts: [{name: fleet, context: {cluster: fleet, user: fleet}}]
current-context: fleet
`, s.address, s.pair.authority())
}

// Add stores an initial object.
func (s *Server) Add(resource string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of(resource)
	o.SetResourceVersion(fmt.Sprint(firstVersion))
	if o.GetUID() == "" {
		o.SetUID(types.UID(resource + "-" + o.GetName()))
	}
	o.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind())
	c.put(entry{key: keyOf(o.GetNamespace(), o.GetName()), object: o})
}

// AddNode stores a node and its slices.
func (s *Server) AddNode(node int, profile string) error {
	all, ok := s.stamps[profile]
	if !ok {
		var err error
		if all, err = stamps(profile); err != nil {
			return err
		}
		s.stamps[profile] = all
	}
	s.Add("nodes", newNode(node))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range all {
		s.of("resourceslices").put(entry{key: one.of(node).Name, stamp: one, node: node})
	}
	return nil
}

// ChangeNode publishes a changed slice of a node, and returns the time.
func (s *Server) ChangeNode(node int, profile string, slice int, change func(*resourceapi.ResourceSlice)) time.Time {
	o := s.stamps[profile][slice].of(node)
	change(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	s.store(s.of("resourceslices"), "MODIFIED", o)
	return began
}

func uid(version int64) types.UID {
	return types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", version))
}

// store stores the next version of an object.
func (s *Server) store(c *collection, what string, o object) entry {
	s.version++
	o.SetResourceVersion(fmt.Sprint(s.version))
	o.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind())
	e := entry{key: keyOf(o.GetNamespace(), o.GetName()), object: o}
	c.happen(what, s.version, e)
	return e
}

// happen stores an object that a client wrote.
func (s *Server) happen(c *collection, what string, o object) entry {
	e := s.store(c, what, o)
	s.writes = append(s.writes, Write{time.Now(), what, c.resource, o})
	close(s.wrote)
	s.wrote = make(chan struct{})
	return e
}

// Writes returns the clients' writes so far, without the first ones.
func (s *Server) Writes(after int) []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes[after:len(s.writes):len(s.writes)]
}

// Await calls see with each write after the first ones, until it returns true, and returns that write.
func (s *Server) Await(ctx context.Context, after int, see func(Write) bool) (Write, error) {
	for {
		s.mu.Lock()
		writes, wrote := s.writes[after:], s.wrote
		s.mu.Unlock()
		for _, w := range writes {
			if see(w) {
				return w, nil
			}
		}
		after += len(writes)
		select {
		case <-ctx.Done():
			return Write{}, ctx.Err()
		case <-wrote:
		}
	}
}

// Secret returns a Secret with the server's own certificate.
func (s *Server) Secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: s.pair.Cert, corev1.TLSPrivateKeyKey: s.pair.Key},
	}
}

// Authority is the certificate authority that clients must trust.
func (s *Server) Authority() []byte { return s.pair.Cert }
