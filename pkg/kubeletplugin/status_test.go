// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	draclient "k8s.io/dynamic-resource-allocation/client"

	"gpu-dra-driver/pkg/devicestate"
)

// writer runs a statusWriter; patches counts what it sent.
func (b *bench) writer() (w *statusWriter, patches *atomic.Int64) {
	w = newStatusWriter(claimStatuses{b.client, draclient.New(b.client)}, "gpu.nvidia.com", b.metrics)
	patches = &atomic.Int64{}
	b.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches.Add(1)
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		w.run(ctx)
		close(done)
	}()
	b.Cleanup(func() {
		cancel()
		<-done
	})
	return w, patches
}

func (b *bench) claim(name string) *resourceapi.ResourceClaim {
	b.Helper()
	c, err := b.client.ResourceV1().ResourceClaims("ns").Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (w *statusWriter) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wanted) == 0
}

func TestStatusIsWrittenBesideOtherDriversEntries(t *testing.T) {
	t.Parallel()
	c := claimNamed("one")
	other := resourceapi.AllocatedDeviceStatus{Driver: "nic.example.com", Pool: "n1", Device: "eth1"}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{other}
	b := newBench(t, c)
	w, patches := b.writer()
	devices, _ := fine()
	devices = append(devices, devices[0]) // Two admin requests can name one device.
	w.prepared(c, devices)
	b.until("written", w.idle)
	got := b.claim("one").Status.Devices
	if len(got) != 2 {
		t.Fatalf("%d entries: %v", len(got), got)
	}
	for _, d := range got {
		if d.Driver == other.Driver {
			if diff := cmp.Diff(other, d); diff != "" {
				t.Errorf("another driver's entry changed (-was +is):\n%s", diff)
			}
			continue
		}
		if d.ShareID == nil || *d.ShareID != "s-1" || len(d.Conditions) != 1 || d.Conditions[0].Type != "Ready" ||
			d.Conditions[0].Reason != "Prepared" || !strings.Contains(string(d.Data.Raw), `"cdiDevice":"k8s.gpu.nvidia.com/claim=x"`) {
			t.Errorf("entry %+v, data %s", d, d.Data.Raw)
		}
	}
	// A restarted kubelet prepares every claim again.
	w.prepared(b.claim("one"), devices)
	if !w.idle() || patches.Load() != 1 {
		t.Errorf("what is written already is wanted again, after %d patches", patches.Load())
	}
	devices[0].Minor, devices[1].Minor = 3, 3
	w.prepared(b.claim("one"), devices)
	b.until("written again", w.idle)
	for _, d := range b.claim("one").Status.Devices {
		if d.Driver != other.Driver && !strings.Contains(string(d.Data.Raw), `"minor":3`) {
			t.Errorf("a changed minor number was not written: %s", d.Data.Raw)
		}
	}
}

func TestStatusIsTriedAgainUntilItIsPointless(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	for name, tc := range map[string]struct {
		err   error
		tries int64
	}{
		"the server is away":                {apierrors.NewServiceUnavailable("away"), 2},
		"the claim is gone":                 {apierrors.NewNotFound(resource, "one"), 1},
		"another claim has the name":        {apierrors.NewConflict(resource, "one", errors.New("uid")), 1},
		"the role lacks the driver's verbs": {apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceClaim"}, "one", nil), 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := claimNamed("one")
			b := newBench(t, c)
			var failed atomic.Bool
			b.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				return failed.CompareAndSwap(false, true), nil, tc.err
			})
			w, patches := b.writer()
			devices, _ := fine()
			w.prepared(c, devices)
			b.until("nothing is left to write", w.idle)
			if got := patches.Load(); got != tc.tries {
				t.Errorf("%d tries, want %d", got, tc.tries)
			}
		})
	}
}

func TestStatusOfAnUnpreparedClaimIsForgotten(t *testing.T) {
	t.Parallel()
	b := newBench(t, claimNamed("one"))
	w := newStatusWriter(claimStatuses{b.client, draclient.New(b.client)}, "gpu.nvidia.com", b.metrics)
	devices, _ := fine()
	w.prepared(claimNamed("one"), devices)
	w.unprepared("uid-one")
	w.work(t.Context(), "uid-one")
	if got := b.claim("one").Status.Devices; len(got) != 0 {
		t.Errorf("written after Unprepare: %v", got)
	}
}

func TestABugInTheBackgroundIsCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	protect(b.metrics, func() { var none []devicestate.PreparedDevice; _ = none[0] })
	b.counted(`gpu_dra_background_errors_total{reason="InternalFault"} 1`)
}

// TestStatusIsWrittenInTheVersionThatTheServerHas: only the newest is known to the client's own Apply.
func TestStatusIsWrittenInTheVersionThatTheServerHas(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		t.Run(version, func(t *testing.T) {
			b := newBench(t)
			var patched atomic.Value
			b.client.PrependReactor("*", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetResource().Version != version {
					return true, nil, apierrors.NewNotFound(schema.GroupResource{Group: "resource.k8s.io"}, "")
				}
				if p, ok := a.(clienttesting.PatchAction); ok {
					patched.Store(p.GetSubresource() + " " + string(p.GetPatch()))
				}
				return true, nil, apierrors.NewServiceUnavailable("enough is known")
			})
			versions := draclient.New(b.client)
			_, _ = versions.ResourceClaims("ns").Get(t.Context(), "one", metav1.GetOptions{}) // As every Prepare does.
			w := newStatusWriter(claimStatuses{b.client, versions}, "gpu.nvidia.com", b.metrics)
			devices, _ := fine()
			w.prepared(claimNamed("one"), devices)
			w.work(t.Context(), "uid-one")
			got, _ := patched.Load().(string)
			if !strings.HasPrefix(got, "status {") || !strings.Contains(got, `"apiVersion":"resource.k8s.io/`+version+`"`) || !strings.Contains(got, `"reason":"Prepared"`) {
				t.Errorf("patched with %q", got)
			}
		})
	}
}
