// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/kubeletplugin"
	"gpu-dra-driver/pkg/kubeletplugin/kubelettest"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

const (
	driver = "gpu.nvidia.com"
	node   = "node-1"
)

// world is a simulated machine, an API server that holds objects, and a plugin between them.
type world struct {
	t       *testing.T
	dir     string
	machine *simtest.DriverRoot
	client  *fake.Clientset
	host    *host.Host
	engine  *devicestate.Engine
	metrics *metrics.Metrics
	kubelet *kubelettest.Kubelet
	newest  atomic.Bool
	healthz int
	// edit, if set, stands in for the driver root.
	edit func(context.Context, plan.Device) error
	// drop takes from a slice what the server does not know.
	drop func(*resourceapi.ResourceSlice)

	stop func() error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "kp") // Sockets have little room for a path.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, machine: simtest.Root(t, "hgx-h100", nil), client: fake.NewClientset(), healthz: -1}
	w.newest.Store(true)
	n := 0
	w.client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		slice := create.GetObject().(*resourceapi.ResourceSlice)
		if w.drop != nil {
			w.drop(slice)
		}
		if len(create.GetCreateOptions().DryRun) > 0 {
			return true, slice, nil
		}
		n++
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, n)
		return false, nil, nil
	})
	w.client.PrependReactor("update", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if w.drop != nil {
			w.drop(action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice))
		}
		return false, nil, nil
	})
	for _, object := range []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "node-uid"}},
	} {
		if err := w.client.Tracker().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// Common and GPU are the engine's edits.
func (w *world) Common(ctx context.Context) (specs.ContainerEdits, error) {
	return w.root().Common(ctx)
}

func (w *world) GPU(ctx context.Context, d plan.Device) (specs.ContainerEdits, error) {
	if w.edit != nil {
		if err := w.edit(ctx, d); err != nil {
			return specs.ContainerEdits{}, err
		}
	}
	return w.root().GPU(ctx, driverroot.Device{Name: d.Name, PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor})
}

func (w *world) root() *driverroot.Root {
	return driverroot.New(driverroot.Options{
		DriverRoot: w.machine.Path, HostDriverRoot: w.machine.Path, DevRoot: w.machine.Path, HostDevRoot: w.machine.Path,
		ProcRoot: w.machine.ProcRoot, HookPath: "/hook",
	})
}

// begin starts a plugin and registers it with the kubelet.
func (w *world) begin() {
	w.t.Helper()
	w.host = host.New(host.Options{BootIDFile: w.machine.BootIDFile})
	data, registry, cdi := filepath.Join(w.dir, "p"), filepath.Join(w.dir, "r"), filepath.Join(w.dir, "c")
	for _, d := range []string{data, registry} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			w.t.Fatal(err)
		}
	}
	plugin := kubeletplugin.New(kubeletplugin.Options{
		Driver: driver, Node: node, DataDir: data, RegistrarDir: registry, HealthcheckPort: w.healthz, VanishedGrace: time.Hour,
		Client: w.client, Cadence: inventory.Cadence{PollInterval: 20 * time.Millisecond, PollsPerScan: 3},
		Inventory: inventory.New(inventory.Options{
			Library: nvmlfake.NewRoot(w.machine.Path), ProcRoot: w.machine.ProcRoot, SysRoot: w.machine.SysRoot, DevRoot: w.machine.Path,
		}),
	})
	var err error
	w.engine, err = devicestate.Open(devicestate.Options{
		Host: w.host, Dir: filepath.Join(data, "state"), Specs: store.New(w.host, cdi, driver), Driver: driver, Pool: node + "/gpu",
		Snapshot: plugin.Snapshot, Edits: w, Report: plugin.Report,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.metrics = metrics.New(metrics.Options{Driver: driver, Node: node, Version: "test", Records: w.engine})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Run(ctx, kubeletplugin.Parts{
			Engine: w.engine, Metrics: w.metrics,
			Newest: func(context.Context) (bool, error) { return w.newest.Load(), nil },
			Witness: kubeletplugin.Witness{
				Socket: filepath.Join(w.dir, "none.sock"), ProcRoot: w.machine.ProcRoot, Snapshot: plugin.Snapshot, Held: w.engine.Held,
			},
		})
	}()
	stopped := false
	w.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		if w.kubelet != nil {
			w.kubelet.Close()
		}
		select {
		case err := <-ended:
			w.host.Close()
			return err
		case <-time.After(15 * time.Second):
			return errors.New("the plugin does not end")
		}
	}
	w.t.Cleanup(func() {
		if err := w.stop(); err != nil {
			w.t.Error(err)
		}
	})
	wait, cancelWait := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancelWait()
	if w.kubelet, err = kubelettest.Register(wait, registry); err != nil {
		w.t.Fatal(err)
	}
}

// until polls for a condition.
func (w *world) until(what string, ok func() (bool, string)) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		done, why := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %s", what, why)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// devices lists what the API server holds, by name.
func (w *world) devices() map[string]resourceapi.Device {
	list, err := w.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]resourceapi.Device{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			out[d.Name] = d
		}
	}
	return out
}

// published waits until so many devices of a type are published.
func (w *world) published(prefix string, want int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d %s devices", want, prefix), func() (bool, string) {
		n := 0
		for name := range w.devices() {
			if d, err := gpu.ParseName(name); err == nil && string(d.Kind) == prefix {
				n++
			}
		}
		return n == want, fmt.Sprintf("%d are published", n)
	})
}

// claim puts an allocated claim into the API server.
func (w *world) claim(uid, device, parameters string) *drapb.Claim {
	w.t.Helper()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + uid, UID: types.UID("p-" + uid)}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: node + "/gpu", Device: device}},
			}},
		},
	}
	if parameters != "" {
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
	}
	if err := w.client.Tracker().Add(c); err != nil {
		w.t.Fatal(err)
	}
	return &drapb.Claim{Namespace: "ns", Name: c.Name, Uid: uid}
}

// prepare asks as the kubelet does and gives the error of each claim, empty for none.
func (w *world) prepare(claims ...*drapb.Claim) map[string]string {
	w.t.Helper()
	answers, err := w.kubelet.Prepare(w.t.Context(), claims...)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]string{}
	for uid, a := range answers {
		out[uid] = a.Error
	}
	return out
}

// event waits for an Event about an object.
func (w *world) event(kind, name, reason string, texts ...string) {
	w.t.Helper()
	w.until("Event on "+name, func() (bool, string) {
		list, err := w.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var seen []string
		for _, e := range list.Items {
			good := e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason
			for _, text := range texts {
				good = good && strings.Contains(e.Message, text)
			}
			if good {
				return true, ""
			}
			seen = append(seen, e.InvolvedObject.Name+" "+e.Reason+": "+e.Message)
		}
		return false, strings.Join(seen, "\n")
	})
}

func (w *world) specs() []string {
	entries, err := os.ReadDir(filepath.Join(w.dir, "c"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func claimOf(uid string) *drapb.Claim {
	return &drapb.Claim{Namespace: "ns", Name: "claim-" + uid, Uid: uid}
}
