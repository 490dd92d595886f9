// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugintest

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// Request is a kind of request to the API server.
type Request string

const (
	GetClaim    Request = "get a claim"
	PatchClaim  Request = "patch a claim's status"
	CreateEvent Request = "create an Event"
	UpdateSlice Request = "update a slice"
)

// Faults makes requests to the API server fail or hang. A reactor of the fake client cannot: while it hangs, all
// other requests wait too.
type Faults struct {
	mu      sync.Mutex
	request Request
	name    string
	err     error
	met     chan struct{}
	cleared chan struct{}
}

// Set makes requests for an object, or for all with an empty name, return an error, or hang without one. The channel
// receives each of them.
func (f *Faults) Set(request Request, name string, err error) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.request, f.name, f.err, f.met, f.cleared = request, name, err, make(chan struct{}, 1000), make(chan struct{})
	return f.met
}

// Clear lets hanging and later requests pass.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.request != "" {
		close(f.cleared)
	}
	f.request = ""
}

func (f *Faults) do(ctx context.Context, request Request, name string) error {
	f.mu.Lock()
	matches := f.request == request && (f.name == "" || f.name == name)
	err, met, cleared := f.err, f.met, f.cleared
	f.mu.Unlock()
	if !matches {
		return nil
	}
	met <- struct{}{}
	if err != nil {
		return err
	}
	select {
	case <-cleared:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// faultyClient sends the requests of the plugin through Faults.
type faultyClient struct {
	kubernetes.Interface
	f *Faults
}

// IsWatchListSemanticsUnSupported makes informers list, as with the fake client.
func (c faultyClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c faultyClient) ResourceV1() resourcev1.ResourceV1Interface {
	return faultyResources{c.Interface.ResourceV1(), c.f}
}

func (c faultyClient) CoreV1() typedcorev1.CoreV1Interface {
	return faultyCore{c.Interface.CoreV1(), c.f}
}

type faultyResources struct {
	resourcev1.ResourceV1Interface
	f *Faults
}

func (c faultyResources) ResourceClaims(namespace string) resourcev1.ResourceClaimInterface {
	return faultyClaims{c.ResourceV1Interface.ResourceClaims(namespace), c.f}
}

func (c faultyResources) ResourceSlices() resourcev1.ResourceSliceInterface {
	return faultySlices{c.ResourceV1Interface.ResourceSlices(), c.f}
}

type faultyClaims struct {
	resourcev1.ResourceClaimInterface
	f *Faults
}

func (c faultyClaims) Get(ctx context.Context, name string, o metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	if err := c.f.do(ctx, GetClaim, name); err != nil {
		return nil, err
	}
	return c.ResourceClaimInterface.Get(ctx, name, o)
}

func (c faultyClaims) Patch(
	ctx context.Context, name string, t types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*resourceapi.ResourceClaim, error) {
	if err := c.f.do(ctx, PatchClaim, name); err != nil {
		return nil, err
	}
	return c.ResourceClaimInterface.Patch(ctx, name, t, data, o, sub...)
}

type faultySlices struct {
	resourcev1.ResourceSliceInterface
	f *Faults
}

func (c faultySlices) Update(
	ctx context.Context, s *resourceapi.ResourceSlice, o metav1.UpdateOptions,
) (*resourceapi.ResourceSlice, error) {
	if err := c.f.do(ctx, UpdateSlice, s.Name); err != nil {
		return nil, err
	}
	return c.ResourceSliceInterface.Update(ctx, s, o)
}

type faultyCore struct {
	typedcorev1.CoreV1Interface
	f *Faults
}

func (c faultyCore) Events(namespace string) typedcorev1.EventInterface {
	return faultyEvents{c.CoreV1Interface.Events(namespace), c.f}
}

type faultyEvents struct {
	typedcorev1.EventInterface
	f *Faults
}

func (c faultyEvents) CreateWithEventNamespace(event *corev1.Event) (*corev1.Event, error) {
	if err := c.f.do(context.Background(), CreateEvent, event.InvolvedObject.Name); err != nil {
		return nil, err
	}
	return c.EventInterface.CreateWithEventNamespaceWithContext(context.Background(), event)
}
