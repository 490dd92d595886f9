// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

func newStatus(e *env.Env) *ClaimStatus {
	return NewClaimStatus(e.Client, env.Driver, e.Metrics)
}

// startStatus runs a ClaimStatus; patches counts its writes.
func startStatus(e *env.Env) (w *ClaimStatus, patches *atomic.Int64) {
	w, patches = newStatus(e), &atomic.Int64{}
	e.Client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches.Add(1)
		return false, nil, nil
	})
	e.Go(w.Run)
	return w, patches
}

func (w *ClaimStatus) idle() (bool, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wanted) == 0, "a status waits"
}

// prepared is an answer of the engine.
func prepared() []devicestate.PreparedDevice {
	return []devicestate.PreparedDevice{{
		Device:      plan.Device{Request: "r/alternative", Pool: "n1/gpu", Name: "gpu-0000-1b-00-0", ShareID: "s-1"},
		CDIDeviceID: "k8s.gpu.nvidia.com/claim=x",
	}}
}

func TestClaimStatus_OtherDriversEntries_AreLeftAlone(t *testing.T) {
	t.Parallel()
	c := env.Claim("one", "", "")
	other := resourceapi.AllocatedDeviceStatus{Driver: "nic.example.com", Pool: "n1", Device: "eth1"}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{other}
	e := env.New(t, c)
	w, patches := startStatus(e)
	devices := prepared()
	devices = append(devices, devices[0]) // Two admin requests can name one device.
	w.Prepared(c, devices)
	e.Eventually("written", w.idle)
	got := e.StoredClaim("claim-one").Status.Devices
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
	w.Prepared(e.StoredClaim("claim-one"), devices)
	if idle, _ := w.idle(); !idle || patches.Load() != 1 {
		t.Errorf("what is written already is wanted again, after %d patches", patches.Load())
	}
	devices[0].Minor, devices[1].Minor = 3, 3
	w.Prepared(e.StoredClaim("claim-one"), devices)
	e.Eventually("written again", w.idle)
	for _, d := range e.StoredClaim("claim-one").Status.Devices {
		if d.Driver != other.Driver && !strings.Contains(string(d.Data.Raw), `"minor":3`) {
			t.Errorf("a changed minor number was not written: %s", d.Data.Raw)
		}
	}
}

func TestClaimStatus_WriteFails_RetriesOnlyWhatCanSucceed(t *testing.T) {
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
			c := env.Claim("one", "", "")
			e := env.New(t, c)
			var failed atomic.Bool
			e.Client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				return failed.CompareAndSwap(false, true), nil, tc.err
			})
			w, patches := startStatus(e)
			devices := prepared()
			w.Prepared(c, devices)
			e.Eventually("nothing is left to write", w.idle)
			if got := patches.Load(); got != tc.tries {
				t.Errorf("%d tries, want %d", got, tc.tries)
			}
		})
	}
}

func TestClaimStatus_ClaimUnprepared_DropsItsStatus(t *testing.T) {
	t.Parallel()
	e := env.New(t, env.Claim("one", "", ""))
	w := newStatus(e)
	devices := prepared()
	w.Prepared(env.Claim("one", "", ""), devices)
	w.Unprepared("one")
	w.sync(t.Context(), "one")
	if got := e.StoredClaim("claim-one").Status.Devices; len(got) != 0 {
		t.Errorf("written after Unprepare: %v", got)
	}
}

// TestClaimStatus_PluginStops_WritesWhatWaits needs a client that ends its calls with their context.
func TestClaimStatus_PluginStops_WritesWhatWaits(t *testing.T) {
	t.Parallel()
	var written []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		written = append(written, path.Base(path.Dir(r.URL.Path)))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim"}`))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w := NewClaimStatus(client, env.Driver, env.New(t).Metrics)
	w.Prepared(env.Claim("one", "", ""), prepared())
	w.Prepared(env.Claim("two", "", ""), prepared())
	stopped, stop := context.WithCancel(t.Context())
	stop()
	w.Run(stopped)
	slices.Sort(written)
	if want := []string{"claim-one", "claim-two"}; !slices.Equal(written, want) {
		t.Errorf("statuses of %v were written, want %v", written, want)
	}
}

func TestClaimStatus_Prepared_PatchesTheStatus(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	var patched atomic.Value
	e.Client.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		patched.Store(p.GetSubresource() + " " + string(p.GetPatch()))
		return true, nil, apierrors.NewServiceUnavailable("enough is known")
	})
	w := NewClaimStatus(e.Client, env.Driver, e.Metrics)
	w.Prepared(env.Claim("one", "", ""), prepared())
	w.sync(t.Context(), "one")
	got, _ := patched.Load().(string)
	if !strings.HasPrefix(got, "status {") || !strings.Contains(got, `"apiVersion":"resource.k8s.io/v1"`) || !strings.Contains(got, `"reason":"Prepared"`) {
		t.Errorf("patched with %q", got)
	}
}

// TestClaimStatus_PartitionLost_StaysUntilPrepare has an XID and a fault of the GPU after the loss: they come together.
func TestClaimStatus_PartitionLost_StaysUntilPrepare(t *testing.T) {
	e := env.New(t, env.Claim("one", "", ""))
	w, _ := startStatus(e)
	reason := func(want string) {
		e.Helper()
		e.Eventually("the status is "+want, func() (bool, string) {
			devices := e.StoredClaim("claim-one").Status.Devices
			if idle, text := w.idle(); !idle || len(devices) == 0 {
				return false, text
			}
			return devices[0].Conditions[0].Reason == want, devices[0].Conditions[0].Reason
		})
	}
	w.Prepared(e.StoredClaim("claim-one"), prepared())
	reason("Prepared")
	w.lost(e.StoredClaim("claim-one"), prepared(), []string{prepared()[0].Name}, errors.New("the partition is gone"))
	reason("PartitionLost")
	w.setXID("one", prepared()[0].Name, 31, "text")
	w.update(e.StoredClaim("claim-one"), prepared())
	reason("PartitionLost")
	w.Prepared(e.StoredClaim("claim-one"), prepared())
	reason("Prepared")
	// A Prepare can come before the loss is written.
	claim := e.StoredClaim("claim-one")
	w.lost(claim, prepared(), []string{prepared()[0].Name}, errors.New("the partition is gone"))
	w.Prepared(claim, prepared())
	reason("Prepared")
}
