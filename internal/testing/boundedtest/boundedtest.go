// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package boundedtest gives the caches of a process the largest objects that an API server stores, and checks how much
// of them they keep.
package boundedtest

import (
	"fmt"
	"iter"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/bounded"
)

// Stored is about the largest size of an object that an API server stores.
const Stored = 1_400_000

// manyElements is a number of elements that is fewer bytes than Stored, and more memory than most limits.
const manyElements = 3_000

// huge is a text as long as an object can be.
var huge = strings.Repeat("x", Stored)

// Check gives each informer that owner has in a field the largest objects of its kind. The informer transforms each,
// and then once more, as an object that was listed. Each is at most as large as its limit, has its identity and says
// that it was cut. Informers of the kinds in exempt, such as *v1.Secret, have no limit.
func Check(t *testing.T, owner any, exempt ...string) {
	t.Helper()
	found := 0
	fields := reflect.ValueOf(owner).Elem()
	for i := range fields.NumField() {
		if fields.Type().Field(i).Type != reflect.TypeFor[cache.SharedIndexInformer]() {
			continue
		}
		found++
		informer := inside(fields.Field(i)).Interface()
		of, _ := inside(reflect.ValueOf(informer).Elem().FieldByName("objectType")).Interface().(runtime.Object)
		trim, _ := inside(reflect.ValueOf(informer).Elem().FieldByName("transform")).Interface().(cache.TransformFunc)
		name := fmt.Sprintf("%T.%s", owner, fields.Type().Field(i).Name)
		if strings.Contains(strings.Join(exempt, " "), fmt.Sprintf("%T", of)) {
			continue
		}
		t.Run(fields.Type().Field(i).Name, func(t *testing.T) {
			if trim == nil {
				t.Fatalf("%s keeps whole objects", name)
			}
			for where, o := range Largest(of) {
				check(t, name+" "+where, o, trim)
			}
		})
	}
	if found == 0 {
		t.Errorf("%T has no informer", owner)
	}
}

func check(t *testing.T, name string, o runtime.Object, trim cache.TransformFunc) {
	t.Helper()
	kept, err := trim(o.DeepCopyObject())
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	first, _ := kept.(runtime.Object)
	mark := bounded.TooLarge(first)
	again, err := trim(first.DeepCopyObject())
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	second, _ := again.(runtime.Object)
	limit, ok := bounded.Limit(second)
	size := second.(interface{ Size() int }).Size()
	was, _ := meta.Accessor(o)
	is, _ := meta.Accessor(second)
	switch {
	case !ok:
		t.Fatalf("%s: %T has no limit", name, second)
	case size > limit:
		t.Fatalf("%s: of %d bytes the cache keeps %d, limit %d", name, o.(interface{ Size() int }).Size(), size, limit)
	case bounded.TooLarge(second) != mark:
		t.Errorf("%s: a second transformation takes a mark for an object, or an object for a mark", name)
	case is.GetName() != was.GetName() || is.GetResourceVersion() != was.GetResourceVersion():
		t.Errorf("%s: it is kept as %s, version %s", name, is.GetName(), is.GetResourceVersion())
	}
}

// inside makes a field readable that is not exported.
func inside(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

// Largest returns objects of a type as large as an API server stores them, by the part that is large: each text, list
// and map of the type in turn. Names and UIDs have their usual length, because the API server limits it.
func Largest(of runtime.Object) iter.Seq2[string, runtime.Object] {
	return func(yield func(string, runtime.Object) bool) {
		for _, state := range states(of) {
			object, _ := reflect.New(reflect.TypeOf(of).Elem()).Interface().(runtime.Object)
			f := &filler{}
			f.fill(reflect.ValueOf(object).Elem(), reflect.TypeOf(of).Elem().Name(), 0, func() {})
			for _, p := range f.parts {
				p.set(true)
				large := object.DeepCopyObject()
				p.set(false)
				state.set(large)
				if !yield(state.name+p.path, large) {
					return
				}
			}
		}
	}
}

// state is one in which a trim keeps other parts of an object.
type state struct {
	name string
	set  func(runtime.Object)
}

func states(of runtime.Object) []state {
	switch of.(type) {
	case *resourceapi.ResourceClaim:
		return []state{
			{"allocated ", func(runtime.Object) {}},
			{"waiting ", func(o runtime.Object) { o.(*resourceapi.ResourceClaim).Status.Allocation = nil }},
		}
	case *corev1.Pod:
		return []state{
			{"running ", func(runtime.Object) {}},
			{"waiting ", func(o runtime.Object) { o.(*corev1.Pod).Spec.NodeName = "" }},
		}
	}
	return []state{{"", func(runtime.Object) {}}}
}

// filler gives each part of an object one small value.
type filler struct{ parts []part }

// part is one that set makes large, and small again.
type part struct {
	path string
	set  func(large bool)
}

// add notes a part with its two values. stored is called after each change.
func (f *filler) add(path string, v reflect.Value, large func() reflect.Value, stored func()) {
	small := reflect.New(v.Type()).Elem()
	small.Set(v)
	f.parts = append(f.parts, part{path, func(to bool) {
		v.Set(small)
		if to {
			v.Set(large())
		}
		stored()
	}})
}

// limited are the parts that the API server limits, in length or number, or writes itself.
func limited(path string) bool {
	for _, end := range []string{
		".Kind", ".APIVersion", ".ObjectMeta.Name", ".ObjectMeta.Namespace", ".ObjectMeta.UID",
		".ObjectMeta.ResourceVersion", ".ObjectMeta.SelfLink",
		".Spec.NodeName", ".Spec.PriorityClassName", ".Status.NominatedNodeName", ".Spec.PreemptionPolicy",
		".Status.Phase", ".ExtendedResourceName",
	} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	// Validation limits these, and only the scheduler and administrators write them.
	return strings.HasPrefix(path, "ResourceClaim.Status.Allocation.Devices.Results") ||
		strings.HasPrefix(path, "ResourceClaim.Status.ReservedFor")
}

const maxDepth = 12

func (f *filler) fill(v reflect.Value, path string, depth int, stored func()) {
	if depth > maxDepth || strings.Contains(path, ".TypeMeta") {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
		if !limited(path) {
			f.add(path, v, func() reflect.Value { return reflect.ValueOf(huge).Convert(v.Type()) }, stored)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path, depth, stored)
	case reflect.Slice:
		n, bytes := manyElements, v.Type().Elem().Kind() == reflect.Uint8
		if bytes {
			n = Stored
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if !limited(path) {
			f.add(path+"[]", v, func() reflect.Value { return reflect.MakeSlice(v.Type(), n, n) }, stored)
		}
		if !bytes {
			f.fill(v.Index(0), path, depth+1, stored)
		}
	case reflect.Map:
		one, key := reflect.New(v.Type().Elem()).Elem(), reflect.New(v.Type().Key()).Elem()
		key.SetString("example.com/x")
		put := func() { v.SetMapIndex(key, one); stored() }
		v.Set(reflect.MakeMap(v.Type()))
		if limited(path) {
			f.fill(one, path, depth+1, put)
			put()
			return
		}
		f.add(path+" key", v, func() reflect.Value {
			out := reflect.MakeMap(v.Type())
			out.SetMapIndex(reflect.ValueOf(huge).Convert(v.Type().Key()), one)
			return out
		}, stored)
		f.add(path+"{}", v, func() reflect.Value {
			out := reflect.MakeMap(v.Type())
			for i := range manyElements {
				out.SetMapIndex(reflect.ValueOf(fmt.Sprintf("example.com/%d", i)).Convert(v.Type().Key()), one)
			}
			return out
		}, stored)
		f.fill(one, path, depth+1, put)
		put()
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i), path+"."+v.Type().Field(i).Name, depth+1, stored)
			}
		}
	}
}
