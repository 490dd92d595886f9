// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/gpu"
)

// few is far below the number of changes in a row of TestController_ManyChanges_MapsStaySmall.
const few = 50

// TestController_ManyChanges_MapsStaySmall makes ten changes a second that leave nothing behind, and looks at every map
// of the controller afterwards, also at those of its libraries.
func TestController_ManyChanges_MapsStaySmall(t *testing.T) {
	class := func(i int) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class-%d", i), UID: "u"},
			Spec: resourceapi.DeviceClassSpec{
				ExtendedResourceName: new(fmt.Sprintf("example.com/gpu-%d", i)),
				Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(`device.driver == "gpu.nvidia.com" && %d > 0`, i)}}},
			},
		}
	}
	rows := map[string]struct {
		changes int
		change  func(e *env, i int)
		// pause is the time between two changes, 100 ms if it is 0; after is the time until the maps are looked at.
		pause, after time.Duration
		// larger are limits of maps, by a part of their paths.
		larger map[string]int
	}{
		"a node publishes other attributes each time": {changes: 100, change: func(e *env, i int) {
			for _, s := range slicesAt(e.T, "t4-1", "a", 0) {
				for _, d := range s.Spec.Devices {
					d.Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: new(fmt.Sprintf("1.0.%d", i))}
				}
				e.Put(s)
			}
		}, after: time.Second},
		"a node publishes another model each time": {changes: 100, change: func(e *env, i int) {
			for _, s := range slicesAt(e.T, "t4-1", "a", 0) {
				for _, d := range s.Spec.Devices {
					d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprintf("Model %d", i))}
				}
				e.Put(s)
			}
		}, pause: 60 * time.Millisecond, after: time.Second, larger: map[string]int{
			// Each model has a class until the grace period ends.
			"Classes.indexer": maxClasses, "classes.unwanted": maxClasses, "classStatuses.known": maxClasses, "resources": maxResources,
		}},
		"a node publishes another MIG layout each time": {changes: manyLayouts + 100, change: func(e *env, i int) {
			scanned, err := slicetest.Scan("gh200", "a", 1)
			if err != nil {
				e.T.Fatal(err)
			}
			for n := range scanned.GPUs[0].MIG.Profiles {
				scanned.GPUs[0].MIG.Profiles[n].MemoryBytes += uint64(i) << 20
			}
			for _, s := range slicetest.Slices(scanned, "a", sharing.Settings{}) {
				e.Put(s)
			}
		}, after: time.Second, larger: map[string]int{"samples.known": manyLayouts + 1}},
		"models come and go": {changes: 100, change: func(e *env, i int) {
			for _, s := range slicesAt(e.T, "t4-1", "a", 0) {
				for _, d := range s.Spec.Devices {
					d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprintf("Model %d", i))}
				}
				e.Put(s)
			}
		}, after: 3 * grace, larger: map[string]int{"resources": maxResources}},
		"nodes come and go": {changes: 100, change: func(e *env, i int) {
			e.Withdraw(fmt.Sprintf("node-%d", i-1))
			e.Publish("t4-1", fmt.Sprintf("node-%d", i), 0)
		}, after: 2 * grace},
		"classes come and go": {changes: maxResources + 100, change: func(e *env, i int) {
			if i > 0 {
				e.Remove("deviceclasses", class(i-1).Name)
			}
			e.Put(class(i))
		}, after: time.Second, larger: map[string]int{"resources": maxResources}},
		"claims of many namespaces come and go": {changes: 100, change: func(e *env, i int) {
			c := claimOf("c", smallest)
			c.Namespace, c.Spec.Devices.Requests[0].Exactly.Selectors = fmt.Sprintf("ns-%d", i), class(i).Spec.Selectors
			e.Put(c)
			if i > 0 {
				e.Remove("resourceclaims", fmt.Sprintf("ns-%d/c", i-1))
			}
		}, after: time.Second},
		"pods with many resources come and go": {changes: 100, change: func(e *env, i int) {
			e.Put(podOf(fmt.Sprint("p", i), fmt.Sprintf("example.com/gpu-%d", i)))
			if i > 0 {
				e.Remove("pods", fmt.Sprintf("ns/p%d", i-1))
			}
		}, after: time.Second},
	}
	ran := 0
	for name, row := range rows {
		for _, leads := range []bool{true, false} {
			name := fmt.Sprintf("%s, leader %v", name, leads)
			if !seedtest.Chosen(name) {
				continue
			}
			ran++
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, machine(t, "hgx-h100", "n1", 1)...)
					c, stop := e.startAs(leads, func(o *Options) {
						o.OnDemand, o.Auto = true, []gpu.Kind{gpu.KindGroup, gpu.KindMonitor}
					})
					defer stop()
					pass(2 * time.Second)
					for i := range row.changes {
						row.change(e, i)
						pass(cmp.Or(row.pause, 100*time.Millisecond))
					}
					pass(row.after)
					for range 100 {
						if runtime.GC(); c.shapes.Len() <= few { // It ends weak references, and other goroutines forget them.
							break
						}
					}
					m := foundMaps{found: map[string]int{}, seen: map[uintptr]bool{}}
					m.walk("", reflect.ValueOf(c))
					m.walk("leading", reflect.ValueOf(c.leading.Load()))
					m.walk("view", reflect.ValueOf(c.ClusterView()))
					if len(m.found) < 10 {
						t.Errorf("only %d maps were found", len(m.found))
					}
					for path, n := range m.found {
						limit := few
						for part, larger := range row.larger {
							if strings.Contains(path, part) {
								limit = max(limit, larger)
							}
						}
						if n > limit {
							t.Errorf("%s has %d entries after %d changes, want at most %d", path, n, row.changes, limit)
						}
					}
					if n := len(c.ClusterView().Pools()); n > few {
						t.Errorf("the view has %d pools after %d changes", n, row.changes)
					}
				})
			})
		}
	}
	if ran == 0 {
		t.Error("no row ran")
	}
}

// TestRepeat_SlowPass_TakesAFifthOfTheTime has a change at every moment.
func TestRepeat_SlowPass_TakesAFifthOfTheTime(t *testing.T) {
	for took, want := range map[time.Duration]int{time.Millisecond: 1177, 100 * time.Millisecond: 121, time.Second: 13, 10 * time.Second: 5} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			wake, passes := make(chan struct{}, 1), 0
			Repeat(ctx, wake, settle, func() time.Duration {
				passes++
				time.Sleep(took)
				Trigger(wake)
				return 0
			})
			if passes > want {
				t.Errorf("%d passes of %v in a minute, want at most %d", passes, took, want)
			}
		})
	}
}

// foundMaps finds maps by reflection.
type foundMaps struct {
	found map[string]int
	seen  map[uintptr]bool
}

// selfBounded have limits of their own.
var selfBounded = []reflect.Type{reflect.TypeFor[lru.Cache](), reflect.TypeFor[ask.Evaluator]()}

func (m foundMaps) walk(path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || m.seen[v.Pointer()] {
			return
		}
		m.seen[v.Pointer()] = true
		m.walk(path, v.Elem())
	case reflect.Interface:
		m.walk(path, v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[sync.Map]() {
			n := 0
			(*sync.Map)(unsafe.Pointer(v.UnsafeAddr())).Range(func(any, any) bool { n++; return true })
			m.found[path] = n
			return
		}
		for _, t := range selfBounded {
			if v.Type() == t {
				return
			}
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); !strings.HasPrefix(f.Type.String(), "*e") && f.Name != "client" && f.Name != "versions" {
				m.walk(path+"."+f.Name, v.Field(i))
			}
		}
	case reflect.Map:
		m.found[path] = max(m.found[path], v.Len())
		for it := v.MapRange(); it.Next(); {
			m.walk(path+"[]", it.Value())
		}
	case reflect.Slice:
		for i := range v.Len() {
			m.walk(path+"[]", v.Index(i))
		}
	}
}
