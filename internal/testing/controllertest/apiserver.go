// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllertest has a cluster in memory for tests of the controller and of its features.
package controllertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Env is an API server in memory with versions, preconditions, pages and watches. Clients
// reach it without a network, so that a bubble of testing/synctest can hold all of it.
type Env struct {
	T testing.TB

	sync.Mutex
	Version int
	Objects map[string]map[string]*unstructured.Unstructured // by resource, then by namespace/name
	History []change
	// Forgotten is the version before which no watch can begin.
	Forgotten int
	Watches   map[*watching]bool
	Writes    []string
	Reads     []string

	// Lists says that initial events are not known, as to an older server.
	Lists bool
	// Stored changes what is written before it is kept.
	Stored func(resource string, object *unstructured.Unstructured)
	// Fault says what becomes of a request: an error before it is done, or an answer that is lost after.
	Fault func(Request) (refused, lost error)
	// Admit changes an object that is created, as admission or a feature gate does.
	Admit func(*unstructured.Unstructured)
}

// Request is a request to the server.
type Request struct{ Verb, Resource, Name string }

func (r Request) String() string { return strings.TrimSpace(r.Verb + " " + r.Resource + " " + r.Name) }

func (r Request) Writes() bool {
	return r.Verb == "create" || r.Verb == "update" || r.Verb == "patch" || r.Verb == "delete"
}

type change struct {
	version  int
	kind     string
	resource string
	object   *unstructured.Unstructured
}

var kinds = map[string]schema.GroupVersionKind{
	"deviceclasses":          {Group: "resource.k8s.io", Version: "v1", Kind: "DeviceClass"},
	"resourceslices":         {Group: "resource.k8s.io", Version: "v1", Kind: "ResourceSlice"},
	"resourceclaims":         {Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
	"resourceclaimtemplates": {Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaimTemplate"},
	"nodes":                  {Version: "v1", Kind: "Node"},
	"pods":                   {Version: "v1", Kind: "Pod"},
	"secrets":                {Version: "v1", Kind: "Secret"},
	"validatingwebhookconfigurations": {Group: "admissionregistration.k8s.io", Version: "v1",
		Kind: "ValidatingWebhookConfiguration"},
	"services":   {Version: "v1", Kind: "Service"},
	"namespaces": {Version: "v1", Kind: "Namespace"},
	"configmaps": {Version: "v1", Kind: "ConfigMap"},
	"gpubudgets": {Group: "gpu.nvidia.com", Version: "v1alpha1", Kind: "GPUBudget"},
}

func New(t testing.TB, objects ...runtime.Object) *Env {
	s := &Env{T: t, Objects: map[string]map[string]*unstructured.Unstructured{}, Watches: map[*watching]bool{}}
	for resource := range kinds {
		s.Objects[resource] = map[string]*unstructured.Unstructured{}
	}
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

func (e *Env) Config() *rest.Config {
	return &rest.Config{
		Host:          "http://server",
		Transport:     e,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

func (e *Env) Client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(e.Config())
	if err != nil {
		e.T.Fatal(err)
	}
	return client
}

// Put writes an object like another program, without a precondition.
func (e *Env) Put(o runtime.Object) {
	e.T.Helper()
	found, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		e.T.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		e.T.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(found[0])
	e.Lock()
	defer e.Unlock()
	for resource, kind := range kinds {
		if kind == found[0] {
			e.keep(resource, u)
			return
		}
	}
	e.T.Fatalf("%v is not served", found[0])
}

// Remove removes an object like another program.
func (e *Env) Remove(resource, name string) {
	e.Lock()
	defer e.Unlock()
	e.Drop(resource, name)
}

// Get reads an object as it is stored; nil where there is none.
func Get[T any](e *Env, resource, name string) *T {
	e.T.Helper()
	e.Lock()
	defer e.Unlock()
	u := e.Objects[resource][name]
	if u == nil {
		return nil
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		e.T.Fatal(err)
	}
	return out
}

// Names returns the names of a resource's objects, in order.
func (e *Env) Names(resource string) []string {
	e.Lock()
	defer e.Unlock()
	return slices.Sorted(maps.Keys(e.Objects[resource]))
}

// Written gives the writes since the last call.
func (e *Env) Written() []string {
	e.Lock()
	defer e.Unlock()
	out := e.Writes
	e.Writes = nil
	return out
}

// ReadRequests gives the reads since the last call.
func (e *Env) ReadRequests() []string {
	e.Lock()
	defer e.Unlock()
	out := e.Reads
	e.Reads = nil
	return out
}

// Forget ends all watches and lets none begin before now: what a client has must be listed anew.
func (e *Env) Forget() {
	e.Lock()
	defer e.Unlock()
	e.Version++
	e.Forgotten, e.History = e.Version, nil
	for w := range e.Watches {
		w.Stop()
	}
}

func key(o *unstructured.Unstructured) string {
	return strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}

// keep stores an object and sends a watch event, unless the object is unchanged.
func (e *Env) keep(resource string, o *unstructured.Unstructured) *unstructured.Unstructured {
	if e.Stored != nil {
		e.Stored(resource, o)
	}
	kind, old := "ADDED", e.Objects[resource][key(o)]
	if old != nil {
		kind = "MODIFIED"
		o.SetUID(old.GetUID())
		o.SetResourceVersion(old.GetResourceVersion())
		if reflect.DeepEqual(old.Object, o.Object) {
			return old
		}
	}
	e.Version++
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", e.Version)))
	}
	o.SetResourceVersion(strconv.Itoa(e.Version))
	e.Objects[resource][key(o)] = o
	e.notify(change{e.Version, kind, resource, o.DeepCopy()})
	return o
}

// Drop removes an object. The caller holds the lock.
func (e *Env) Drop(resource, name string) {
	o := e.Objects[resource][name]
	if o == nil {
		return
	}
	delete(e.Objects[resource], name)
	e.Version++
	o = o.DeepCopy()
	o.SetResourceVersion(strconv.Itoa(e.Version))
	e.notify(change{e.Version, "DELETED", resource, o})
}

func (e *Env) notify(c change) {
	e.History = append(e.History, c)
	for w := range e.Watches {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (e *Env) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	e.Lock()
	defer e.Unlock()
	if r.URL.Path == "/version" {
		return answer(r, &version.Info{GitVersion: "v1.37.1"}, nil)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := schema.GroupVersion{Version: parts[1]}
	if parts = parts[2:]; strings.HasPrefix(r.URL.Path, "/apis/") {
		group, parts = schema.GroupVersion{Group: group.Version, Version: parts[0]}, parts[1:]
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource, name := parts[0], ""
	if len(parts) > 1 {
		name = strings.TrimPrefix(namespace+"/"+parts[1], "/")
	}
	if kinds[resource].GroupVersion() != group {
		return answer(r, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{},
			"", "not served", 0, true))
	}
	is := Request{Verb: verb(r, name), Resource: resource, Name: name}
	if is.Writes() {
		e.Writes = append(e.Writes, is.String())
	} else {
		e.Reads = append(e.Reads, strings.TrimSpace(is.String()+" "+r.URL.Query().Get("limit")))
	}
	var lost error
	if e.Fault != nil {
		var refused error
		if refused, lost = e.Fault(is); refused != nil {
			return answer(r, nil, refused) // Errors other than a status break the connection.
		}
	}
	out, stream, err := e.do(r, is, namespace, body)
	switch {
	case lost != nil && stream == nil:
		return answer(r, nil, lost)
	case stream != nil:
		return stream, nil
	}
	return answer(r, out, err)
}

func verb(r *http.Request, name string) string {
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") == "true":
		return "watch"
	case r.Method == http.MethodGet && name == "":
		return "list"
	}
	return map[string]string{
		http.MethodGet:    "get",
		http.MethodPost:   "create",
		http.MethodPut:    "update",
		http.MethodPatch:  "patch",
		http.MethodDelete: "delete",
	}[r.Method]
}

func (e *Env) do(
	r *http.Request, is Request, namespace string, body []byte,
) (out any, stream *http.Response, err error) {
	resource := schema.GroupResource{Group: kinds[is.Resource].Group, Resource: is.Resource}
	old := e.Objects[is.Resource][is.Name]
	if is.Name != "" && old == nil {
		return nil, nil, apierrors.NewNotFound(resource, is.Name)
	}
	conflict := apierrors.NewConflict(resource, is.Name, errors.New("the object has been modified"))
	switch is.Verb {
	case "get":
		return old, nil, nil
	case "list", "watch":
		return e.listOrWatch(r, is, namespace)
	case "delete":
		var o metav1.DeleteOptions
		if err := json.Unmarshal(body, &o); err != nil {
			return nil, nil, err
		}
		if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != old.GetUID() || p.ResourceVersion != nil &&
			*p.ResourceVersion != old.GetResourceVersion()) {
			return nil, nil, conflict
		}
		e.Drop(is.Resource, is.Name)
		return old, nil, nil
	case "patch":
		var patch map[string]any
		if err := json.Unmarshal(body, &patch); err != nil {
			return nil, nil, err
		}
		o := &unstructured.Unstructured{Object: merge(old.DeepCopy().Object, patch)}
		if o.GetResourceVersion() != old.GetResourceVersion() {
			return nil, nil, conflict
		}
		return e.keep(is.Resource, o), nil, nil
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &o.Object); err != nil {
		return nil, nil, err
	}
	o.SetGroupVersionKind(kinds[is.Resource])
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	if is.Verb == "create" {
		if e.Admit != nil {
			e.Admit(o)
		}
		if e.Objects[is.Resource][key(o)] != nil {
			return nil, nil, apierrors.NewAlreadyExists(resource, key(o))
		}
		if r.URL.Query().Get("dryRun") != "" {
			return o, nil, nil
		}
	} else if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, nil, conflict
	}
	return e.keep(is.Resource, o), nil, nil
}

// merge is a JSON merge patch.
func merge(into, patch map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(into, name)
		case map[string]any:
			inner, _ := into[name].(map[string]any)
			into[name] = merge(inner, v)
		default:
			into[name] = value
		}
	}
	return into
}

// listOrWatch lists or watches.
func (e *Env) listOrWatch(r *http.Request, is Request, namespace string) (any, *http.Response, error) {
	query := r.URL.Query()
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	labelled, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	selects := func(o *unstructured.Unstructured) bool {
		driver, _, _ := unstructured.NestedString(o.Object, "spec", "driver")
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		return (namespace == "" || o.GetNamespace() == namespace) &&
			labelled.Matches(labels.Set(o.GetLabels())) &&
			selector.Matches(fields.Set{
				"spec.driver":   driver,
				"status.phase":  phase,
				"spec.nodeName": node,
				"metadata.name": o.GetName(),
			})
	}
	var found []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(e.Objects[is.Resource])) {
		if o := e.Objects[is.Resource][name]; selects(o) {
			found = append(found, o)
		}
	}
	expired := apierrors.NewResourceExpired("too old resource version")
	if is.Verb == "watch" {
		initial := query.Get("sendInitialEvents") == "true"
		if initial && e.Lists {
			return nil, nil, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
		}
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		if !initial && from < e.Forgotten {
			return nil, nil, expired
		}
		var first []event
		if initial {
			for _, o := range found {
				first = append(first, event{"ADDED", o.DeepCopy().Object})
			}
			first = append(first, e.bookmark(is.Resource, r, true))
			from = e.Version
		}
		return nil, e.watch(r, is.Resource, from, first, selects), nil
	}
	list := map[string]any{
		"kind": kinds[is.Resource].Kind + "List", "apiVersion": kinds[is.Resource].GroupVersion().String(),
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(e.Version)},
	}
	if after := query.Get("continue"); after != "" {
		version, last, _ := strings.Cut(after, " ")
		if n, err := strconv.Atoi(version); err != nil || n < e.Forgotten {
			return nil, nil, expired
		}
		found = slices.DeleteFunc(found, func(o *unstructured.Unstructured) bool { return key(o) <= last })
	}
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && len(found) > limit {
		found = found[:limit]
		list["metadata"].(map[string]any)["continue"] = fmt.Sprintf("%d %s", e.Version, key(found[limit-1]))
	}
	items := []any{}
	for _, o := range found {
		items = append(items, o.DeepCopy().Object)
	}
	list["items"] = items
	return list, nil, nil
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func (e *Env) bookmark(resource string, r *http.Request, complete bool) event {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kinds[resource])
	o.SetResourceVersion(strconv.Itoa(e.Version))
	if complete {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return event{"BOOKMARK", o.DeepCopy().Object}
}

// watching is a watch that goes on. Its wake has room for one.
type watching struct {
	wake chan struct{}
	Stop func()
}

func (e *Env) watch(
	r *http.Request, resource string, from int, first []event, selects func(*unstructured.Unstructured) bool,
) *http.Response {
	in, out := io.Pipe()
	ended := make(chan struct{})
	w := &watching{wake: make(chan struct{}, 1)}
	w.Stop = sync.OnceFunc(func() {
		close(ended)
		_ = out.Close()
	})
	e.Watches[w] = true
	released := context.AfterFunc(r.Context(), w.Stop)
	go func() {
		defer func() {
			released()
			w.Stop()
			e.Lock()
			defer e.Unlock()
			delete(e.Watches, w)
		}()
		encoder := json.NewEncoder(out)
		for {
			for _, e := range first {
				if encoder.Encode(e) != nil {
					return
				}
			}
			first = nil
			e.Lock()
			for _, c := range e.History {
				if c.version > from && c.resource == resource && selects(c.object) {
					first = append(first, event{c.kind, c.object.DeepCopy().Object})
				}
			}
			from = max(from, e.Version)
			e.Unlock()
			if len(first) > 0 {
				continue
			}
			select {
			case <-ended:
				return
			case <-w.wake:
			}
		}
	}()
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       &body{in, w.Stop},
		Request:    r,
	}
}

// body is a stream that ends when its reader closes it.
type body struct {
	*io.PipeReader
	stop func()
}

func (b *body) Close() error {
	err := b.PipeReader.Close()
	b.stop()
	return err
}

func answer(r *http.Request, out any, err error) (*http.Response, error) {
	code := http.StatusOK
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		s := status.Status()
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		code, out = int(s.Code), s
	case err != nil:
		return nil, err
	}
	if o, ok := out.(*unstructured.Unstructured); ok {
		out = o.Object
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(data)),
		Request:    r,
	}, nil
}
