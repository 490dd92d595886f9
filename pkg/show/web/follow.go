// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/read"
)

// The names of the resources.
const (
	Slices  = "ResourceSlices"
	Claims  = "ResourceClaims"
	Classes = "DeviceClasses"
	Rules   = "DeviceTaintRules"
	Nodes   = "Nodes"
)

// Resource is a kind of objects to follow.
type Resource struct {
	Name   string
	Source cache.ListerWatcherWithContext
	// Scope follows the name in notes, as in "ResourceClaims of all namespaces".
	Scope string
	// Effect says what the page lacks if the user may not list the objects.
	Effect string
	// Optional objects are not missed if the server does not have them.
	Optional bool
	// Else is followed instead if the user may not list the objects, or the server does not have them.
	Else *Resource
}

// A page of a list fails after requestLimit. A failed request is repeated after retryPause, and a list that the user
// may not watch after pollInterval.
const (
	requestLimit = time.Minute
	retryPause   = 2 * time.Second
	pollInterval = 30 * time.Second
)

// Follow keeps the objects of a resource in the cluster, until the context ends. Notes on the page say what it lacks.
// client-go's reflector does not report a watch that ends with an error, holds a whole list at once, and has one pause
// for all errors.
func (c *Cluster) Follow(ctx context.Context, r Resource) {
	for ctx.Err() == nil {
		version, err := c.list(ctx, r)
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			switch {
			case apierrors.IsForbidden(err):
				c.Note(r.Name+" rights", fmt.Sprintf("You may not list %s%s: %s.", r.Name, r.Scope, r.Effect))
			case !r.Optional:
				c.Note(r.Name+" rights", fmt.Sprintf("The API server has no %s: %s.", r.Name, r.Effect))
			}
			if r.Else != nil {
				c.Follow(ctx, *r.Else)
			} else {
				c.Done(r.Name)
			}
			return
		}
		wait := retryPause
		if err == nil {
			c.Note(r.Name, "")
			err = c.watch(ctx, r, version)
		}
		switch {
		case ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			continue
		case apierrors.IsForbidden(err):
			c.Note(r.Name, fmt.Sprintf("You may not watch %s%s: they are read every %s.", r.Name, r.Scope,
				pollInterval))
			wait = pollInterval
		default:
			c.Note(r.Name, fmt.Sprintf("%s may be out of date, and are read again: %v.", r.Name, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// page is a page of a list.
type page interface {
	runtime.Object
	metav1.ListInterface
}

// list reads all objects in pages and returns their version.
func (c *Cluster) list(ctx context.Context, r Resource) (version string, err error) {
	keys := sets.New[types.NamespacedName]()
	list := func(ctx context.Context, o metav1.ListOptions) (page, error) {
		limited, cancel := context.WithTimeout(ctx, requestLimit)
		defer cancel()
		l, err := r.Source.ListWithContext(limited, o)
		p, _ := l.(page) // All lists are.
		return p, err
	}
	for p, err := range read.Pages(ctx, metav1.ListOptions{}, list) {
		if err != nil {
			return "", err
		}
		_ = meta.EachListItem(p, func(one runtime.Object) error { // The function returns no error.
			if m, err := meta.Accessor(one); err == nil {
				keys.Insert(types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()})
				c.Put(one, false)
			}
			return nil
		})
		version = p.GetResourceVersion()
	}
	c.Listed(r.Name, keys)
	return version, nil
}

// watch applies changes since a version. It starts again when the server ends a watch, and returns the first error.
func (c *Cluster) watch(ctx context.Context, r Resource, version string) error {
	for {
		w, err := r.Source.WatchWithContext(ctx,
			metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			return err
		}
		began, at := time.Now(), version
		for open := true; open; {
			var e watch.Event
			select {
			case <-ctx.Done():
				w.Stop()
				return ctx.Err()
			case e, open = <-w.ResultChan():
			}
			if !open {
				break
			}
			if e.Type == watch.Error {
				w.Stop()
				return apierrors.FromObject(e.Object)
			}
			m, err := meta.Accessor(e.Object)
			if err != nil {
				continue
			}
			at = m.GetResourceVersion()
			if e.Type != watch.Bookmark {
				c.Put(e.Object, e.Type == watch.Deleted)
			}
		}
		if at == version && time.Since(began) < retryPause {
			return errWatchEnded
		}
		version = at
	}
}

// errWatchEnded is a watch that ended at once, as a server does that shuts down.
var errWatchEnded = errors.New("the API server ended the watch at once")
