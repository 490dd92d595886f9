// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiservertest serves the objects of client-go's fake clients over HTTP, so that a test runs a whole program
// with a kubeconfig.
//
// Trap. The fake clients have no versions of objects, so no write conflicts, and field selectors select all objects.
package apiservertest

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// next is the last port that FreePort tried, counted from 10000.
var next atomic.Uint32

func init() { next.Store(rand.Uint32N(20_000)) }

// FreePort returns a port on which no process listens. It is below those that the kernel gives to connections, which
// would take it before the program listens.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + int(next.Add(1)%20_000))
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return port
		}
	}
	t.Fatal("no port of a hundred is free")
	return ""
}

// Server serves until the test ends.
type Server struct {
	// Kubeconfig is the path of the file with the server's address.
	Kubeconfig string

	client *fake.Clientset
	// custom has the resources that client does not know, and kinds their kinds.
	custom *dynamicfake.FakeDynamicClient
	kinds  map[schema.GroupVersionResource]string
	agents sync.Map
	held   atomic.Pointer[hold]
}

// hold makes requests wait.
type hold struct {
	matches func(*http.Request) bool
	met     chan struct{}
	once    sync.Once
}

// Hold makes requests wait until their clients give up. met is closed at the first of them.
func (s *Server) Hold(matches func(*http.Request) bool) (met <-chan struct{}) {
	h := &hold{matches: matches, met: make(chan struct{})}
	s.held.Store(h)
	return h.met
}

// Release lets later requests pass.
func (s *Server) Release() { s.held.Store(nil) }

// Serve serves the objects of a fake client, and custom objects of these kinds.
func Serve(
	t testing.TB, client *fake.Clientset, kinds map[schema.GroupVersionResource]string, custom ...runtime.Object,
) *Server {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{}
	for resource, kind := range kinds {
		lists[resource] = kind + "List"
	}
	s := &Server{
		client:     client,
		kinds:      kinds,
		custom:     dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, custom...),
		Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections() // Watches do not end by themselves.
		server.Close()
	})
	text := "clusters: [{name: c, cluster: {server: '" + server.URL +
		"'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(s.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// Custom returns the client of the custom objects.
func (s *Server) Custom() dynamic.Interface { return s.custom }

// Knows reports whether a program with this user agent has sent a request.
func (s *Server) Knows(agent string) bool {
	_, known := s.agents.Load(agent)
	return known
}

// target has the parts of a path.
type target struct {
	kind                         schema.GroupVersionKind
	resource                     schema.GroupVersionResource
	namespace, name, subresource string
	fake                         *clienttesting.Fake
}

// find parses a path: /api/v1/… or /apis/GROUP/VERSION/…, with or without a namespace.
func (s *Server) find(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = append([]string{"apis", ""}, parts[1:]...)
	}
	if len(parts) < 4 || parts[0] != "apis" {
		return t, false
	}
	version, parts := schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	t.resource, t.name, t.subresource = version.WithResource(parts[0]), parts[1], parts[2]
	for kind := range scheme.Scheme.KnownTypes(version) {
		if plural, _ := meta.UnsafeGuessKindToResource(version.WithKind(kind)); plural == t.resource {
			t.kind, t.fake = version.WithKind(kind), &s.client.Fake
			return t, true
		}
	}
	kind, ok := s.kinds[t.resource]
	t.kind, t.fake = version.WithKind(kind), &s.custom.Fake
	return t, ok
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.agents.Store(r.UserAgent(), true)
	if h := s.held.Load(); h != nil && h.matches(r) {
		h.once.Do(func() { close(h.met) })
		_, _ = io.Copy(io.Discard, r.Body) // The end of a connection is noticed after its request was read.
		<-r.Context().Done()
		return
	}
	if r.URL.Path == "/version" {
		version, err := s.client.Discovery().ServerVersion()
		answer(w, version, err)
		return
	}
	t, ok := s.find(r.URL.Path)
	switch {
	case !ok:
		answer(w, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "",
			"not served", 0, true))
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, t)
	default:
		out, err := t.do(r)
		answer(w, out, err)
	}
}

func (t target) do(r *http.Request) (runtime.Object, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	query := r.URL.Query()
	var action clienttesting.Action
	switch r.Method {
	case http.MethodGet:
		if t.name == "" {
			return t.list()
		}
		action = clienttesting.NewGetAction(t.resource, t.namespace, t.name)
	case http.MethodDelete:
		action = clienttesting.NewDeleteAction(t.resource, t.namespace, t.name)
	case http.MethodPatch:
		options := metav1.PatchOptions{FieldManager: query.Get("fieldManager"), DryRun: query["dryRun"]}
		patch := clienttesting.NewPatchSubresourceActionWithOptions(t.resource, t.namespace, t.name,
			types.PatchType(r.Header.Get("Content-Type")), body, options, t.subresource)
		if t.subresource == "" {
			patch.Subresource = ""
		}
		action = patch
	default:
		object, err := decode(body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if r.Method == http.MethodPost {
			action = clienttesting.NewCreateActionWithOptions(t.resource, t.namespace, object,
				metav1.CreateOptions{DryRun: query["dryRun"]})
		} else {
			action = clienttesting.NewUpdateSubresourceActionWithOptions(t.resource, t.subresource, t.namespace, object,
				metav1.UpdateOptions{})
		}
	}
	out, err := t.fake.Invokes(action, nil)
	if err == nil && out == nil { // A deletion.
		return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusSuccess}, nil
	}
	return t.typed(out), err
}

func decode(body []byte) (runtime.Object, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		custom := &unstructured.Unstructured{}
		return custom, custom.UnmarshalJSON(body)
	}
	return object, err
}

func (t target) list() (runtime.Object, error) {
	out, err := t.fake.Invokes(clienttesting.NewListAction(t.resource, t.kind, t.namespace, metav1.ListOptions{}), nil)
	if err != nil || out == nil {
		return nil, err
	}
	out = out.DeepCopyObject()
	if out.GetObjectKind().GroupVersionKind().Kind == "" {
		out.GetObjectKind().SetGroupVersionKind(t.kind.GroupVersion().WithKind(t.kind.Kind + "List"))
	}
	return out, nil
}

// typed returns an object with its kind, which typed objects of the fake client lack.
func (t target) typed(o runtime.Object) runtime.Object {
	if o == nil || o.GetObjectKind().GroupVersionKind().Kind != "" {
		return o
	}
	o = o.DeepCopyObject()
	o.GetObjectKind().SetGroupVersionKind(t.kind)
	return o
}

// watch sends the present objects first, because a change between a list and its watch has no version.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	if r.URL.Query().Get("sendInitialEvents") != "" { // As a server that does not know it, whose clients list.
		answer(w, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	}
	changes, err := t.fake.InvokesWatch(clienttesting.NewWatchAction(t.resource, t.namespace, metav1.ListOptions{}))
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer changes.Stop()
	present, err := t.list()
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder, out := json.NewEncoder(w), http.NewResponseController(w)
	send := func(what string, o runtime.Object) error {
		return encoder.Encode(map[string]any{"type": what, "object": t.typed(o)})
	}
	err = meta.EachListItem(present, func(o runtime.Object) error { return send("ADDED", o) })
	for err == nil && out.Flush() == nil {
		select {
		case <-r.Context().Done():
			return
		case c, more := <-changes.ResultChan():
			if !more {
				return
			}
			err = send(string(c.Type), c.Object)
		}
	}
}

func answer(w http.ResponseWriter, out any, err error) {
	code := http.StatusOK
	var status apierrors.APIStatus
	if err != nil && !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	if status != nil {
		s := status.Status()
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		code, out = int(s.Code), s
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out) // The client may have disconnected.
}
