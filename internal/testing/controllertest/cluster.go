// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// Main is the TestMain of a package that uses bubbles. It has errors of informers only logged: their other handler
// waits by a clock from before a bubble, whose time begins in the year 2000.
func Main(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

var known sync.Map

// SlicesAt returns the slices of a node with the first GPUs of a profile, 0 for all of them.
func SlicesAt(t testing.TB, profile, node string, gpus int) (out []*resourceapi.ResourceSlice) {
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

// Machine returns a Node and what it publishes.
func Machine(t testing.TB, profile, node string, gpus int) []runtime.Object {
	t.Helper()
	out := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node,
		Labels: map[string]string{"kubernetes.io/hostname": node}}}}
	for _, s := range SlicesAt(t, profile, node, gpus) {
		out = append(out, s)
	}
	return out
}

// Publish writes the ResourceSlices of a node; Withdraw deletes them all, as a starting kubelet does.
func (e *Env) Publish(profile, node string, gpus int) {
	e.T.Helper()
	for _, slice := range SlicesAt(e.T, profile, node, gpus) {
		e.Put(slice)
	}
}

func (e *Env) Withdraw(node string) {
	e.T.Helper()
	for _, name := range e.Names("resourceslices") {
		if *Get[resourceapi.ResourceSlice](e, "resourceslices", name).Spec.NodeName == node {
			e.Remove("resourceslices", name)
		}
	}
}

// Pass lets time pass, of which a bubble has its own, and then all that has begun come to rest.
func Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// AutoSlices returns the slices of a node with the setting Auto, whose sample another node publishes or not.
func AutoSlices(t testing.TB, board, node string, elsewhere bool) []*resourceapi.ResourceSlice {
	t.Helper()
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: Auto, monitors: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan(board, node, 0)
	if err != nil {
		t.Fatal(err)
	}
	return slicetest.Slices(scanned, node, settings, func(o *resourceslices.Options) {
		o.Sharing = sharing.Node{
			Name:     node,
			Settings: settings,
			MPS:      true,
			Demand:   sharingtest.NoDemand{Elsewhere: elsewhere},
		}
	})
}

// Dynamic returns a client for objects of any kind.
func (e *Env) Dynamic() dynamic.Interface {
	client, err := dynamic.NewForConfig(e.Config())
	if err != nil {
		e.T.Fatal(err)
	}
	return client
}

// PutBudget gives a namespace a budget of GPUs.
func (e *Env) PutBudget(namespace, gpus string) {
	e.T.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"hard": map[string]any{"gpus": gpus}},
	}}
	u.SetGroupVersionKind(kinds["gpubudgets"])
	u.SetNamespace(namespace)
	u.SetName(v1alpha1.Name)
	u.SetGeneration(1)
	e.Lock()
	defer e.Unlock()
	e.keep("gpubudgets", u)
}
