// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

const first, second = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"

func TestClaimIsPreparedAndUnprepared(t *testing.T) {
	w := newWorld(t)
	w.begin()
	w.published("gpu", 8)
	w.published("monitor", 8)
	c := w.claim("u-1", first, "")
	answers, err := w.kubelet.Prepare(t.Context(), c)
	if err != nil || answers["u-1"].Error != "" {
		t.Fatal(answers, err)
	}
	devices := answers["u-1"].Devices
	if len(devices) != 1 || devices[0].DeviceName != first || devices[0].PoolName != node+"/gpu" || len(devices[0].CdiDeviceIds) != 1 {
		t.Errorf("the kubelet is told %v", devices)
	}
	if len(w.specs()) != 1 {
		t.Errorf("specs: %v", w.specs())
	}
	w.until("status.devices", func() (bool, string) {
		now, err := w.client.ResourceV1().ResourceClaims("ns").Get(t.Context(), c.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(now.Status.Devices) == 1 && now.Status.Devices[0].Device == first, "not written"
	})
	text := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(text, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(text.Body.String(), `nvidia_dra_prepared_devices{device_type="gpu",driver="gpu.nvidia.com",node="node-1"} 1`) {
		t.Errorf("prepared devices are not counted:\n%s", text.Body)
	}
	taken, err := w.kubelet.Unprepare(t.Context(), c)
	if err != nil || taken["u-1"].Error != "" {
		t.Fatal(taken, err)
	}
	if len(w.specs()) != 0 {
		t.Errorf("left: %v", w.specs())
	}
	if err := w.engine.Check(); err != nil {
		t.Error(err)
	}
}

func TestOneClaimOfACallFailsAlone(t *testing.T) {
	w := newWorld(t)
	w.begin()
	w.published("gpu", 8)
	good := w.claim("u-1", first, "")
	bad := w.claim("u-2", second, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`)
	errs := w.prepare(good, bad)
	if errs["u-1"] != "" || !strings.Contains(errs["u-2"], "sharring") {
		t.Errorf("%q", errs)
	}
	w.event("ResourceClaim", bad.Name, "InvalidParameters", "sharring", "create the claim anew")
	w.event("Pod", "pod-u-2", "InvalidParameters", "sharring")
	other := w.claim("u-3", first, "")
	if err := w.prepare(other)["u-3"]; !strings.Contains(err, good.Name) {
		t.Errorf("the second owner of a GPU hears %q", err)
	}
	w.event("ResourceClaim", other.Name, "DeviceInUse")
}

func TestABugEndsOneClaimOnly(t *testing.T) {
	w := newWorld(t)
	var broken atomic.Bool
	w.edit = func(_ context.Context, d plan.Device) error {
		if d.Name == second && broken.Load() {
			panic("a bug")
		}
		return nil
	}
	w.begin()
	w.published("gpu", 8)
	broken.Store(true)
	errs := w.prepare(w.claim("u-1", first, ""), w.claim("u-2", second, ""))
	if errs["u-1"] != "" || !strings.Contains(errs["u-2"], "bug of the driver") || strings.Contains(errs["u-2"], "goroutine") {
		t.Errorf("%q", errs)
	}
	broken.Store(false)
	if err := w.prepare(w.claim("u-4", "gpu-0000-52-00-0", ""))["u-4"]; err != "" {
		t.Error("the plugin does not go on:", err)
	}
}

func TestSlicesFollowTheHardwareAndTheHeldStay(t *testing.T) {
	w := newWorld(t)
	w.begin()
	w.published("gpu", 8)
	if err := w.prepare(w.claim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[1].Lost = true, true })
	w.published("gpu", 7)
	w.until("the held GPU tainted", func() (bool, string) { return len(w.devices()[first].Taints) == 1, "no taint" })
	if err := w.prepare(w.claim("u-2", second, ""))["u-2"]; !strings.Contains(err, "lost") {
		t.Errorf("a claim for a lost GPU hears %q", err)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[1].Lost = false, false })
	w.published("gpu", 8)
	w.until("no taint", func() (bool, string) { return len(w.devices()[first].Taints) == 0, "a taint" })
	simtest.Change(t, w.machine, func(s *engine.State) { s.DriverLoaded = false })
	w.published("gpu", 1)
	if _, held := w.devices()[first]; !held {
		t.Errorf("what stays is not the held GPU: %v", w.devices())
	}
}

func TestOnlyTheNewestPublishes(t *testing.T) {
	w := newWorld(t)
	w.newest.Store(false)
	w.begin()
	// It serves all the same.
	w.until("a claim prepared", func() (bool, string) {
		c := "u-1"
		if _, err := w.client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "claim-u-1", metav1.GetOptions{}); err != nil {
			w.claim(c, first, "")
		}
		answers, err := w.kubelet.Prepare(t.Context(), claimOf(c))
		return err == nil && answers[c].Error == "", "not yet"
	})
	if n := len(w.devices()); n > 0 {
		t.Fatalf("an older instance published %d devices", n)
	}
	w.newest.Store(true)
	w.published("gpu", 8)
	w.newest.Store(false)
	w.until("publishing ended", func() (bool, string) {
		text := httptest.NewRecorder()
		w.metrics.Handler().ServeHTTP(text, httptest.NewRequest("GET", "/metrics", nil))
		return !strings.Contains(text.Body.String(), "gpu_dra_published_devices{"), "it goes on"
	})
}

func TestServerWithoutTaintsGetsNoMonitors(t *testing.T) {
	w := newWorld(t)
	w.drop = func(s *resourceapi.ResourceSlice) {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints, s.Spec.Devices[i].AllowMultipleAllocations = nil, nil
		}
	}
	w.begin()
	w.published("gpu", 8)
	w.published("monitor", 0)
}

func TestAPIServerAwayAtTheStart(t *testing.T) {
	w := newWorld(t)
	var away atomic.Bool
	away.Store(true)
	w.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	w.begin()
	// A pod can end without an API server.
	taken, err := w.kubelet.Unprepare(t.Context(), claimOf("u-9"))
	if err != nil || taken["u-9"].Error != "" {
		t.Fatal(taken, err)
	}
	away.Store(false)
	w.published("gpu", 8)
}

func TestEndWaitsForCallsInFlight(t *testing.T) {
	w := newWorld(t)
	entered, release := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	w.edit = func(ctx context.Context, _ plan.Device) error {
		if hold.Load() {
			close(entered)
			select {
			case <-release:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	w.begin()
	w.published("gpu", 8)
	hold.Store(true)
	c := w.claim("u-1", first, "")
	answered := make(chan string, 1)
	go func() {
		answers, err := w.kubelet.Prepare(context.Background(), c)
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- answers["u-1"].Error
	}()
	<-entered
	began := time.Now()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the end took %s", took)
	}
	if text := <-answered; text == "" {
		t.Error("the held call was answered well")
	}
	if len(w.specs()) > 0 {
		t.Errorf("half a claim is left: %v", w.specs())
	}
	hold.Store(false)
	w.begin()
	if err := w.prepare(c)["u-1"]; err != "" {
		t.Error("the next plugin:", err)
	}
}

func TestDeletedSpecsAreWrittenAgain(t *testing.T) {
	w := newWorld(t)
	w.begin()
	w.published("gpu", 8)
	if err := w.prepare(w.claim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(w.dir, "c")); err != nil {
		t.Fatal(err)
	}
	w.until("the spec written again", func() (bool, string) { return len(w.specs()) == 1, "none" })
}

func TestDamagedRecordIsReported(t *testing.T) {
	w := newWorld(t)
	w.begin()
	w.published("gpu", 8)
	if err := w.prepare(w.claim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.dir, "p", "state", "records", "claims", "u-1.json")
	if err := os.WriteFile(path, []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.event("ResourceClaim", "claim-u-1", "RecordUnreadable", "quarantine")
	text := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(text, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(text.Body.String(), "gpu_dra_quarantined_records") {
		t.Error("quarantine is not counted")
	}
	if err := w.prepare(w.claim("u-2", first, ""))["u-2"]; !strings.Contains(err, "claim-u-1") {
		t.Errorf("the damaged record does not block its GPU: %q", err)
	}
}

func TestHealthIsTold(t *testing.T) {
	w := newWorld(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.healthz = listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	w.begin()
	w.published("gpu", 8)
	conn, err := grpc.NewClient("127.0.0.1:"+strconv.Itoa(w.healthz), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w.until("SERVING", func() (bool, string) {
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil && answer.Status == healthpb.HealthCheckResponse_SERVING, "not yet"
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := w.kubelet.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	w.published(string(gpu.KindMonitor), 8)
	w.until("all devices are published", func() (bool, string) {
		n := len(w.devices())
		return n == len(report.Devices) && n > 200, fmt.Sprintf("%d, and the health of %d is reported", n, len(report.Devices))
	})
}
