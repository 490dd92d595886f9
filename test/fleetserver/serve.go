// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	stdjson "encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// target is the resource and object of a request.
type target struct {
	*collection
	namespace, name string
}

// find parses a path: /api/v1/… or /apis/group/version/…, with or without a namespace.
func (s *Server) find(path string) (target, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) > 0 && parts[0] == "api" {
		parts = append([]string{"apis", ""}, parts[1:]...)
	}
	if len(parts) < 4 {
		return target{}, false
	}
	version, rest := strings.TrimPrefix(parts[1]+"/"+parts[2], "/"), parts[3:]
	var t target
	if rest[0] == "namespaces" && len(rest) > 2 {
		t.namespace, rest = rest[1], rest[2:]
	}
	if t.collection = s.collections[version+"/"+rest[0]]; t.collection == nil || len(rest) > 2 {
		return target{}, false
	}
	if len(rest) == 2 {
		t.name = rest[1]
	}
	return t, true
}

// proxied returns the pod of a path of the proxy: /api/v1/namespaces/NAMESPACE/pods/http:POD:PORT/proxy/metrics.
func proxied(path string) (pod string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) < 7 || parts[4] != "pods" || parts[6] != "proxy" {
		return "", false
	}
	name := strings.Split(parts[5], ":")
	return name[min(1, len(name)-1)], true
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	if pod, ok := proxied(r.URL.Path); ok && s.Metrics != nil {
		s.Metrics(w, r, pod)
		return
	}
	t, ok := s.find(r.URL.Path)
	if !ok {
		fail(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	var err error
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		err = s.watch(w, r, t)
	case r.Method == http.MethodGet && t.name == "":
		err = s.list(w, r, t)
	case r.Method == http.MethodGet:
		err = s.get(w, r, t)
	default:
		err = s.write(w, r, t)
	}
	if err != nil {
		fail(w, err)
	}
}

// fail answers as an API server does: the status is always JSON.
func fail(w http.ResponseWriter, err error) {
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	what := status.Status()
	what.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	text, _ := stdjson.Marshal(what) // A Status always encodes.
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(int(what.Code))
	_, _ = w.Write(text) // The client may have disconnected.
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, t target) error {
	s.mu.Lock()
	e, ok := t.entries[keyOf(t.namespace, t.name)]
	s.mu.Unlock()
	if !ok {
		return t.missing()
	}
	return answer(w, r, t, e, http.StatusOK)
}

func (t target) missing() error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: t.resource}, t.name)
}

func answer(w http.ResponseWriter, r *http.Request, t target, e entry, code int) error {
	enc := encodingOf(r)
	text, err := e.raw(enc)
	if err == nil {
		text, err = enc.one(text, enc.typeOf(t.collection))
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", enc.contentType(false))
	w.WriteHeader(code)
	_, _ = w.Write(text) // The client may have disconnected.
	return nil
}

// list serves a page. A list from the cache, which version 0 requests, has a single page.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t target) error {
	q, enc := r.URL.Query(), encodingOf(r)
	limit, _ := strconv.Atoi(q.Get("limit")) // No limit is 0.
	if q.Get("resourceVersion") == "0" {
		limit = 0
	}
	prefix := ""
	if t.namespace != "" {
		prefix = t.namespace + "/"
	}
	s.mu.Lock()
	entries, left := t.page(prefix, q.Get("continue"), limit)
	if node, ok := strings.CutPrefix(q.Get("fieldSelector"), "spec.nodeName="); ok {
		entries = slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
			p, isPod := e.object.(*corev1.Pod)
			return !isPod || p.Spec.NodeName != node
		})
	}
	meta := metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}
	s.mu.Unlock()
	if left > 0 {
		more := int64(left)
		meta.Continue, meta.RemainingItemCount = entries[len(entries)-1].key, &more
	}
	items := make([][]byte, len(entries))
	for i, e := range entries {
		var err error
		if items[i], err = e.raw(enc); err != nil {
			return err
		}
	}
	text, err := enc.list(items, meta, enc.typeOf(t.collection))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", enc.contentType(false))
	_, _ = w.Write(text) // The client may have disconnected.
	return nil
}

// watch serves the present objects, if requested, and every change until the client disconnects.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) error {
	q, enc := r.URL.Query(), encodingOf(r)
	if q.Get("sendInitialEvents") != "" && s.WithoutWatchList {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	s.mu.Lock()
	var first []entry
	next := len(t.log)
	version := s.version
	switch asked := q.Get("resourceVersion"); {
	case q.Get("sendInitialEvents") == "true", asked == "", asked == "0":
		prefix := ""
		if t.namespace != "" {
			prefix = t.namespace + "/"
		}
		first, _ = t.page(prefix, "", 0)
	default:
		since, err := strconv.ParseInt(asked, 10, 64)
		if err != nil {
			s.mu.Unlock()
			return apierrors.NewBadRequest("the resource version is not a number")
		}
		next = t.since(since)
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", enc.contentType(true))
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	send := func(what string, raw []byte, err error) bool {
		if err != nil {
			return false
		}
		text, err := enc.event(what, raw, enc.typeOf(t.collection))
		if err == nil {
			_, err = w.Write(text)
		}
		return err == nil
	}
	for _, e := range first {
		raw, err := e.raw(enc)
		if !send("ADDED", raw, err) {
			return nil
		}
	}
	if q.Get("sendInitialEvents") == "true" {
		raw, err := encode(&metav1.PartialObjectMetadata{
			TypeMeta:   enc.typeOf(t.collection),
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		}, enc.format)
		if !send("BOOKMARK", raw, err) {
			return nil
		}
	}
	for {
		s.mu.Lock()
		changes, more := t.log[next:], t.more
		s.mu.Unlock()
		for _, c := range changes {
			raw, err := c.entry.raw(enc)
			if !send(c.what, raw, err) {
				return nil
			}
		}
		next += len(changes)
		if out.Flush() != nil {
			return nil
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.done:
			return nil
		case <-more:
		}
	}
}

// write creates, replaces, patches or deletes an object.
func (s *Server) write(w http.ResponseWriter, r *http.Request, t target) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e, what, err := s.change(r.Method, t, body)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	code := http.StatusOK
	if what == "ADDED" {
		code = http.StatusCreated
	}
	return answer(w, r, t, e, code)
}

func (s *Server) change(method string, t target, body []byte) (e entry, what string, err error) {
	key := keyOf(t.namespace, t.name)
	is, exists := t.entries[key]
	if !exists && method != http.MethodPost {
		return e, "", t.missing()
	}
	var now object
	switch method {
	case http.MethodDelete:
		now, what = is.object, "DELETED"
	case http.MethodPatch:
		what = "MODIFIED"
		if now, err = patched(is.object, body); err != nil {
			return e, "", err
		}
	default:
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return e, "", apierrors.NewBadRequest(err.Error())
		}
		ok := false
		if now, ok = decoded.(object); !ok {
			return e, "", apierrors.NewBadRequest(fmt.Sprintf("%T has no metadata", decoded))
		}
		key, what = keyOf(t.namespace, now.GetName()), "MODIFIED"
		if method == http.MethodPost {
			if _, taken := t.entries[key]; taken {
				return e, "", apierrors.NewAlreadyExists(schema.GroupResource{Resource: t.resource}, now.GetName())
			}
			now.SetUID(uid(s.version))
			now.SetCreationTimestamp(metav1.Now())
			what = "ADDED"
		}
	}
	if v := now.GetResourceVersion(); exists && what == "MODIFIED" && v != "" && v != is.object.GetResourceVersion() {
		return e, "", apierrors.NewConflict(schema.GroupResource{Resource: t.resource}, now.GetName(), fmt.Errorf("version %s is not the newest", v))
	}
	if what == "DELETED" {
		now, _ = now.DeepCopyObject().(object) // It was one.
	}
	return s.happen(t.collection, what, now), what, nil
}

// patched merges the labels and annotations of a patch; a version in it must be the object's.
func patched(is object, body []byte) (object, error) {
	var patch struct {
		Metadata struct {
			ResourceVersion     string
			Labels, Annotations map[string]*string
		}
	}
	if err := stdjson.Unmarshal(body, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	now, _ := is.DeepCopyObject().(object) // It was one.
	now.SetResourceVersion(patch.Metadata.ResourceVersion)
	now.SetLabels(merged(now.GetLabels(), patch.Metadata.Labels))
	now.SetAnnotations(merged(now.GetAnnotations(), patch.Metadata.Annotations))
	return now, nil
}

func merged(is map[string]string, patch map[string]*string) map[string]string {
	if is == nil {
		is = map[string]string{}
	}
	for key, value := range patch {
		if value == nil {
			delete(is, key)
		} else {
			is[key] = *value
		}
	}
	return is
}
