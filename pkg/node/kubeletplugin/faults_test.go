// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// apiFault is one answer of the API server, or none.
type apiFault struct {
	name string
	err  error // nil means that the request hangs.
	// final means that the request is not repeated: the object is gone, or another one has its name.
	final bool
}

var apiFaults = func() []apiFault {
	r := schema.GroupResource{Group: resourceapi.GroupName, Resource: "objects"}
	return []apiFault{
		{name: "error 500", err: apierrors.NewInternalError(errors.New("etcd"))},
		{name: "conflict", err: apierrors.NewConflict(r, "x", errors.New("changed")), final: true},
		{name: "not found", err: apierrors.NewNotFound(r, "x"), final: true},
		{name: "timeout", err: apierrors.NewTimeoutError("slow", 1)},
		{name: "connection lost", err: errors.New("connection refused")},
		{name: "hang"},
	}
}()

// newFaultyEnv starts a plugin, whose API server has one version of the API. After a 404 the client tries the others.
func newFaultyEnv(t *testing.T) testEnv {
	e := newEnv(t)
	e.Client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource()
		return r.Group == resourceapi.GroupName && r.Version != "v1", nil, apierrors.NewNotFound(r.GroupResource(), "")
	})
	e.start()
	e.Published(gpu.KindGPU, 8)
	return e
}

// TestPlugin_APIRequestFailsOrHangs_ServesClaims makes each request of the plugin fail in each way. Meanwhile other
// claims are served, and pods end. Afterwards the claim is prepared, and what the request writes is written.
func TestPlugin_APIRequestFailsOrHangs_ServesClaims(t *testing.T) {
	e := newFaultyEnv(t)
	const last = 7
	lose := func(lost bool) { simtest.Change(t, e.Machine, func(s *engine.State) { s.GPUs[last].Lost = lost }) }
	for _, request := range []struct {
		env.Request
		// during runs with the fault.
		during func(t *testing.T, f apiFault, c *drapb.Claim)
		after  func(t *testing.T, f apiFault, c *drapb.Claim)
	}{
		{env.GetClaim, func(t *testing.T, _ apiFault, c *drapb.Claim) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // The kubelet's limit.
			defer cancel()
			if answers, err := e.Kubelet.Prepare(ctx, c); err == nil && answers[c.Uid].Error == "" {
				t.Error("prepared without the claim")
			}
		}, nil},
		{env.PatchClaim, e.mustPrepare, func(t *testing.T, f apiFault, c *drapb.Claim) {
			e.Eventually("the claim's status is written", func() (bool, string) {
				return f.final || len(e.StoredClaim(c.Name).Status.Devices) == 1, "not written"
			})
		}},
		{env.CreateEvent, func(t *testing.T, f apiFault, c *drapb.Claim) {
			e.mustPrepare(t, f, c)
			refused := e.AddClaim(c.Uid+"-refused", first, "")
			if err := e.Prepare(refused)[refused.Uid]; !strings.Contains(err, "is held by claim") {
				t.Errorf("%q", err)
			}
		}, nil},
		{env.UpdateSlice, func(t *testing.T, f apiFault, c *drapb.Claim) {
			lose(true)
			e.mustPrepare(t, f, c)
		}, func(*testing.T, apiFault, *drapb.Claim) {
			e.Published(gpu.KindGPU, 7)
			lose(false)
			e.Published(gpu.KindGPU, 8)
		}},
	} {
		for i, f := range apiFaults {
			t.Run(string(request.Request)+", "+f.name, func(t *testing.T) {
				uid := strings.ReplaceAll(fmt.Sprint(request.Request, i), " ", "-")
				uid = strings.ReplaceAll(uid, "'", "")
				c, other := e.AddClaim(uid, first, ""), e.AddClaim(uid+"-other", second, "")
				name := ""
				if request.Request == env.GetClaim {
					name = c.Name
				}
				asked := e.Faults.Set(request.Request, name, f.err)
				request.during(t, f, c)
				<-asked
				e.mustPrepare(t, f, other)
				e.Unprepare(other)
				e.Faults.Clear()
				e.mustPrepare(t, f, c)
				if request.after != nil {
					request.after(t, f, c)
				}
				e.Unprepare(c)
			})
		}
	}
	e.CheckClean()
}

func (e testEnv) mustPrepare(t *testing.T, _ apiFault, c *drapb.Claim) {
	t.Helper()
	if err := e.Prepare(c)[c.Uid]; err != "" {
		t.Errorf("claim %s: %s", c.Name, err)
	}
}

// TestPlugin_LookUpOfHolderFailsOrHangs_ServesClaims makes the request fail with which Prepare decides whether to wait
// for a device.
func TestPlugin_LookUpOfHolderFailsOrHangs_ServesClaims(t *testing.T) {
	e := newFaultyEnv(t)
	for i, f := range apiFaults {
		t.Run(f.name, func(t *testing.T) {
			uid := fmt.Sprint("u", i)
			old, next, other := e.AddClaim(uid, first, ""), e.AddClaim(uid+"-next", first, ""), e.AddClaim(uid+"-other", second, "")
			e.mustPrepare(t, f, old)
			asked := e.Faults.Set(env.GetClaim, old.Name, f.err)
			answered := make(chan string, 1)
			go func() { answered <- e.Prepare(next)[next.Uid] }()
			<-asked
			waits := apierrors.IsNotFound(f.err) || f.err == nil // A claim that is gone ends.
			if !waits {
				if err := <-answered; !strings.Contains(err, "is held by claim ns/"+old.Name) {
					t.Errorf("%q", err)
				}
			}
			e.mustPrepare(t, f, other)
			e.Unprepare(other, old)
			if err := e.Client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			e.Faults.Clear()
			if waits {
				if err := <-answered; err != "" {
					t.Errorf("%q", err)
				}
			}
			e.mustPrepare(t, f, next)
			e.Unprepare(next)
		})
	}
	e.CheckClean()
}
