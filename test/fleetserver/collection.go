// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// firstVersion is the resource version of all initial objects: a number with as many digits as all later ones.
const firstVersion = 1_000_000

// object is the stored form of objects, except for stamped slices.
type object interface {
	runtime.Object
	metav1.Object
}

// entry is one version of one object. It is never changed.
type entry struct {
	key    string
	object object
	// stamp and node make a slice in place of an object.
	stamp *stamp
	node  int
}

// raw returns the encoded object, without envelope.
func (e entry) raw(w encoding) ([]byte, error) {
	switch {
	case e.stamp != nil && w.format == protobuf:
		return e.stamp.protobuf.appendFor(nil, e.node), nil
	case e.stamp != nil:
		return e.stamp.json.appendFor(nil, e.node), nil
	case w.partial:
		return encode(partial(e.object), w.format)
	}
	return encode(e.object, w.format)
}

func partial(o object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
			Labels: o.GetLabels(), Annotations: o.GetAnnotations(), ManagedFields: o.GetManagedFields(),
		},
	}
}

// change is an event of a watch.
type change struct {
	what    string
	version int64
	entry   entry
}

// collection holds all objects of one resource. Its server's lock guards it.
type collection struct {
	kind     metav1.TypeMeta
	resource string
	entries  map[string]entry
	// keys are ordered. They are nil until they are computed.
	keys []string
	// log holds every change so far; more is closed at the next change.
	log  []change
	more chan struct{}
}

func newCollection(version, kind, resource string) *collection {
	return &collection{
		kind: metav1.TypeMeta{APIVersion: version, Kind: kind}, resource: resource, entries: map[string]entry{}, more: make(chan struct{}),
	}
}

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// put stores an entry without an event.
func (c *collection) put(e entry) {
	if _, ok := c.entries[e.key]; !ok {
		c.keys = nil
	}
	c.entries[e.key] = e
}

// happen stores or removes an entry, and notifies watchers.
func (c *collection) happen(what string, version int64, e entry) {
	if what == "DELETED" {
		delete(c.entries, e.key)
		c.keys = nil
	} else {
		c.put(e)
	}
	c.log = append(c.log, change{what, version, e})
	close(c.more)
	c.more = make(chan struct{})
}

// page returns up to limit entries after a key, all for 0, and the number of remaining ones.
func (c *collection) page(prefix, after string, limit int) (out []entry, left int) {
	if c.keys == nil {
		for key := range c.entries {
			c.keys = append(c.keys, key)
		}
		slices.Sort(c.keys)
	}
	from, found := slices.BinarySearch(c.keys, after)
	if found {
		from++
	}
	for i, key := range c.keys[from:] {
		if limit > 0 && len(out) == limit {
			return out, len(c.keys) - from - i
		}
		if strings.HasPrefix(key, prefix) {
			out = append(out, c.entries[key])
		}
	}
	return out, 0
}

// since returns the log's index of the first change after a version.
func (c *collection) since(version int64) int {
	at, _ := slices.BinarySearchFunc(c.log, version+1, func(e change, v int64) int { return int(e.version - v) })
	return at
}
