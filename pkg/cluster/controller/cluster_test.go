// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
)

const (
	grace     = 10 * time.Minute
	l40sClass = "nvidia-l40s.gpu.nvidia.com"
	h100Class = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"
	t4Class   = "tesla-t4.gpu.nvidia.com"
	smallest  = "mig-1g.10gb.nvidia.com"
)

// TestMain has errors of informers only logged: their other handler waits by a clock from before a bubble, whose time begins
// in the year 2000.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

var known sync.Map

// slicesAt returns the slices of a node with the first GPUs of a profile, 0 for all of them.
func slicesAt(t testing.TB, profile, node string, gpus int) (out []*resourceapi.ResourceSlice) {
	t.Helper()
	key := fmt.Sprint(profile, " ", gpus)
	made, ok := known.Load(key)
	if !ok {
		slices, err := slicetest.Node(profile, "node", gpus)
		if err != nil {
			t.Fatal(err)
		}
		made, _ = known.LoadOrStore(key, slices)
	}
	for i, s := range made.([]*resourceapi.ResourceSlice) {
		s = s.DeepCopy()
		s.Name, s.Spec.NodeName = fmt.Sprintf("%s-%02d", node, i), &node
		s.Spec.Pool.Name = strings.Replace(s.Spec.Pool.Name, "node/", node+"/", 1)
		out = append(out, s)
	}
	return out
}

// machine is a Node and what it publishes.
func machine(t testing.TB, profile, node string, gpus int) []runtime.Object {
	t.Helper()
	out := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"kubernetes.io/hostname": node}}}}
	for _, s := range slicesAt(t, profile, node, gpus) {
		out = append(out, s)
	}
	return out
}

// publish writes the ResourceSlices of a node; withdraw deletes them all, as a starting kubelet does.
func (e *env) publish(profile, node string, gpus int) {
	e.t.Helper()
	for _, slice := range slicesAt(e.t, profile, node, gpus) {
		e.put(slice)
	}
}

func (e *env) withdraw(node string) {
	e.t.Helper()
	for _, name := range e.names("resourceslices") {
		if *get[resourceapi.ResourceSlice](e, "resourceslices", name).Spec.NodeName == node {
			e.remove("resourceslices", name)
		}
	}
}

// start runs a controller that leads, until stop is called.
func (e *env) start(change ...func(*Options)) (c *Controller, stop func()) {
	e.t.Helper()
	return e.startAs(true, change...)
}

// startAs is start for a controller that leads or not.
func (e *env) startAs(leads bool, change ...func(*Options)) (c *Controller, stop func()) {
	e.t.Helper()
	o := Options{
		LabelNodes: true, Grace: grace,
		Classes: deviceclasses.Options{Driver: slicetest.Driver, Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-"},
	}
	for _, f := range change {
		f(&o)
	}
	c = New(o.Classes.Driver, e.client(), o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	parts := []func(context.Context) error{c.Observe}
	if leads {
		parts = append(parts, c.Lead)
	}
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				e.t.Error(err)
			}
		})
	}
	return c, func() {
		cancel()
		wg.Wait()
	}
}

// pass lets time pass, of which a bubble has its own, and then all that has begun come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// at has a test done in a bubble: with a cluster on which a controller has come to rest.
func at(t *testing.T, objects []runtime.Object, do func(*testing.T, *env, *Controller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, objects...)
		c, stop := e.start()
		defer stop()
		pass(time.Second)
		do(t, e, c)
	})
}
