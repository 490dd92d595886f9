// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"iter"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/read"
)

// reader reads a cluster with the rights of its user, and keeps how each read ends.
type reader struct {
	*factory
	// client speaks protobuf.
	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	// own is the user's namespace.
	own string

	// mu guards the other fields while objects are read side by side.
	mu     sync.Mutex
	states read.States
	// Unseen says in a sentence each what could not be read.
	Unseen []string
}

func (f *factory) reader() (*reader, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, err
	}
	r := &reader{factory: f, states: read.States{}}
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = "application/vnd.kubernetes.protobuf"
	protobuf.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if r.client, err = kubernetes.NewForConfig(protobuf); err == nil {
		r.dynamic, err = dynamic.NewForConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	r.own, err = f.namespace()
	return r, err
}

// kind says what an answer lacks without the objects of a resource.
type kind struct {
	resource read.Resource
	// effect is for all objects, and others for those of other namespaces. Without an effect there is no note.
	effect, others string
	// optional objects do not exist if the API server does not serve them.
	optional bool
}

// source is where the objects of a kind are: in all namespaces, and then in the user's own if the kind has namespaces.
type source struct {
	kind
	lists []*cache.ListWatch
}

// from returns the source of the objects that a field selector selects.
func from[L read.List](k kind, selector string, clients ...read.Client[L]) source {
	s := source{kind: k}
	for _, c := range clients {
		s.lists = append(s.lists, read.ListWatch(c, selector))
	}
	return s
}

func (r *reader) claims() source {
	claims := r.client.ResourceV1().ResourceClaims
	return from(kind{
		resource: read.ResourceClaims, effect: "holders are not shown, and devices look free that are not",
		others: ", and devices of others look free",
	}, "", claims(metav1.NamespaceAll), claims(r.own))
}

func (r *reader) classes() source {
	k := kind{resource: read.DeviceClasses, effect: "classes are not shown"}
	return from(k, "", r.client.ResourceV1().DeviceClasses())
}

func (r *reader) pods(selector string) source {
	pods := r.client.CoreV1().Pods
	return from(kind{resource: read.Pods, effect: "their state is not shown"}, selector, pods(metav1.NamespaceAll),
		pods(r.own))
}

// ruleKind are the DeviceTaintRules, which have a client for each version of their API.
var ruleKind = kind{resource: read.DeviceTaintRules, effect: "DeviceTaintRules are not shown", optional: true}

// ends has the errors of a read of all namespaces, and of the user's own. They are equal if only one was tried.
type ends struct{ all, own error }

// list iterates over the pages of a source: of the user's namespace if that is all the user may read.
func (s source) list(ctx context.Context, labels string, e *ends) iter.Seq[runtime.Object] {
	return func(yield func(runtime.Object) bool) {
		began := false
		for i, all := range s.lists {
			if began || i > 0 && !apierrors.IsForbidden(e.all) {
				return
			}
			o := metav1.ListOptions{LabelSelector: labels, Limit: pageSize}
			for page, err := range read.Pages(ctx,
				o, func(ctx context.Context, o metav1.ListOptions) (read.List, error) {
					objects, err := all.ListWithContext(ctx, o)
					page, _ := objects.(read.List) // All lists are.
					return page, err
				}) {
				if e.own = err; i == 0 {
					e.all = err
				}
				if err != nil {
					break
				}
				if began = true; !yield(page) {
					return
				}
			}
		}
	}
}

// read calls put with each page of a source, and keeps how that ended. A missing right becomes a note. Other errors
// name the objects.
func (r *reader) read(ctx context.Context, s source, labels string, put func(runtime.Object) error) error {
	var e ends
	for page := range s.list(ctx, labels, &e) {
		if err := put(page); err != nil {
			return fmt.Errorf("list %s: %w", s.resource, err)
		}
	}
	return r.end(s.kind, e)
}

// appendTo returns a function that appends the objects of a page.
func appendTo[T runtime.Object](all *[]T) func(page runtime.Object) error {
	return func(page runtime.Object) error {
		return meta.EachListItem(page, func(o runtime.Object) error {
			if one, ok := o.(T); ok {
				*all = append(*all, one)
			}
			return nil
		})
	}
}

// end keeps how the read of a kind ends.
func (r *reader) end(k kind, e ends) error {
	if k.optional && apierrors.IsNotFound(e.own) {
		e.own = nil
	}
	if k.optional && apierrors.IsNotFound(e.all) {
		e.all = nil
	}
	text := ""
	switch {
	case e.own != nil && apierrors.IsForbidden(e.own):
		text = fmt.Sprintf("you may not list %s: %s", k.resource, k.effect)
	case e.own != nil:
		r.miss(k.resource, e.own, "")
		return fmt.Errorf("list %s: %w", k.resource, e.own)
	case e.all != nil:
		text = fmt.Sprintf("you may not list %s of all namespaces: %s", k.resource, r.onlyOwn(k))
	}
	if k.effect == "" {
		text = ""
	}
	r.miss(k.resource, e.all, text)
	return nil
}

func (r *reader) onlyOwn(k kind) string {
	return "only those of namespace " + r.own + " are shown" + k.others
}

// miss keeps the state of a resource, and a note about it unless the text is empty.
func (r *reader) miss(resource read.Resource, err error, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[resource] = err
	if text != "" {
		r.Unseen = append(r.Unseen, text)
	}
}
