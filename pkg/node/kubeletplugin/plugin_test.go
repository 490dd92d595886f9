// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/tracker"
	"gpu-dra-driver/pkg/node/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/wire/schedulerfault"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// noModes are MIG modes that no driver switched.
type noModes struct{}

func (noModes) Switched() (map[string]bool, error) { return nil, nil }

func (noModes) Stuck() (map[string][]gpu.Partition, error) { return nil, nil }

// testEnv starts this package's plugin in an Env.
type testEnv struct{ *env.Env }

func newEnv(t *testing.T) testEnv { return testEnv{env.New(t)} }

func (e testEnv) start() {
	e.Helper()
	e.Start(build)
}

func build(e *env.Env) func(context.Context) error {
	m := metrics.New(metrics.Options{Driver: env.Driver, Node: env.Node, Version: "test"})
	e.Metrics = m
	events := reporting.NewEvents(e.API(), env.Node, env.Driver, m)
	scans, changed := inventory.NewLatest(), notify.NewTrigger()
	e.Rebound = notify.NewTrigger()
	served, err := record.OpenGPUs(e.Host, filepath.Join(e.StateDir(), "gpus"), podresources.DevicePluginSetting)
	if err != nil {
		e.Fatal(err)
	}
	kubelet := podresources.NewKubelet(filepath.Join(e.Dir, "kubelet.sock"))
	devicePlugins := podresources.NewDevicePlugins(podresources.DevicePluginsOptions{
		Kubelet: kubelet, Scans: scans, Records: served, Host: e.Host, Lock: filepath.Join(e.StateDir(), "served.lock"),
		Changed: changed, Metrics: m, Reports: events,
	})
	engine, err := devicestate.Open(devicestate.Options{
		Host: e.Host, Dir: e.StateDir(), Specs: store.New(e.Host, e.CDIDir(), filepath.Join(e.StateDir(), "mounted"), env.Driver),
		Driver: env.Driver, Pool: env.Node + "/gpu", Scans: scans, Edits: e, Reports: events, Kernel: e.Kernel,
		DevicePlugins: devicePlugins, Sharing: sharing.Node{},
	})
	if err != nil {
		e.Fatal(err)
	}
	faults, err := record.OpenGPUs(e.Host, filepath.Join(e.StateDir(), "gpus"), tracker.Setting)
	if err != nil {
		e.Fatal(err)
	}
	tick := e.Tick
	if tick == nil {
		tick = func(d time.Duration) (<-chan time.Time, func()) {
			if d == inventory.AnswerInterval {
				return time.Tick(d / 2), func() {} // A busy machine can take seconds for a scan.
			}
			return time.Tick(4 * time.Millisecond), func() {}
		}
	}
	library := nvmlfake.NewRoot(e.Machine.Path)
	faulty := tracker.New(e.Host, faults, filepath.Join(e.StateDir(), "health.lock"), events, health.Settings{})
	m.CollectRecords(engine.View(), func(context.Context) (map[string][]metrics.User, error) { return nil, nil },
		func() sampler.Snapshot { return sampler.Snapshot{} })
	cordons := publishing.NewCordons(e.API(), env.Driver, env.Node, events, changed)
	node := publishing.NewNode(env.Node, changed, publishing.NodeOptions{
		Records: engine.View(), Reports: events, Modes: noModes{}, DevicePlugins: devicePlugins, Cordoned: cordons,
	})
	return kubeletplugin.New(engine, node, events, m, kubeletplugin.Options{
		Driver: env.Driver, Node: env.Node, DataDir: e.DataDir(), RegistrarDir: e.RegistrarDir(), HealthcheckPort: e.HealthPort, PodUID: e.PodUID,
		Client: e.API(), SchedulerVersion: e.SchedulerVersion,
		Inventory: inventory.New(inventory.Options{
			Health: faulty, Scans: scans, Host: e.Host, File: filepath.Join(e.StateDir(), "gpus.json"),
			Library: library, ProcRoot: e.Machine.ProcRoot, SysRoot: e.Machine.SysRoot, DevRoot: e.Machine.Path,
			Tick: tick,
		}),
		Instance: e.Enlist(),
		XIDs: kubeletplugin.XIDOptions{
			Locks: watcher.NewLocks(), Polls: notify.NewTrigger(), Library: library, ProcRoot: e.Machine.ProcRoot, SysRoot: e.Machine.SysRoot, Health: faulty, Ignore: []uint64{43},
		},
		DevicePlugins: devicePlugins,
		Usage: podresources.NewUsage(kubelet, podresources.UsageOptions{
			ProcRoot: e.Machine.ProcRoot, Scans: scans, Records: engine,
		}),
		VanishedGrace: time.Hour, Rebound: e.Rebound, Settings: executor.NewSettings(e.Host, engine, scans), Background: []kubeletplugin.Runner{cordons},
	}).Run
}

const first, second = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"

// TestPlugin_SchedulerFault_PublishesWholeGPUsUnlessSet has an API server with a known fault, and the setting.
func TestPlugin_SchedulerFault_PublishesWholeGPUsUnlessSet(t *testing.T) {
	e := newEnv(t)
	e.ServerVersion("v1.36.1+k3s1")
	e.start()
	e.Published(gpu.KindGPU, 8)
	e.Event("Node", env.Node, "SchedulerFault", "Kubernetes 1.36.1", "crashes the scheduler", "Upgrade Kubernetes to 1.36.2 or newer", "--scheduler-version")
	e.Event("Node", env.Node, "SchedulerFault", "a GPU and its partitions or groups at once")
	for _, s := range e.Slices() {
		if len(s.Spec.SharedCounters) > 0 {
			t.Errorf("slice %s has counters", s.Name)
		}
		for _, d := range s.Spec.Devices {
			if d.AllowMultipleAllocations != nil || len(d.ConsumesCounters) > 0 {
				t.Errorf("device %s is published", d.Name)
			}
		}
	}
	e.Stop()
	set := newEnv(t)
	set.ServerVersion("v1.36.1")
	set.SchedulerVersion, _ = schedulerfault.Parse("v1.36.3")
	set.start()
	set.Published(gpu.KindMonitor, 8)
	set.Published(gpu.KindGroup, 7)
}

func TestPlugin_ClaimOfAGPU_IsPreparedAndUnprepared(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	e.Published(gpu.KindMonitor, 8)
	c := e.AddClaim("u-1", first, "")
	answers, err := e.Kubelet.Prepare(t.Context(), c)
	if err != nil || answers["u-1"].Error != "" {
		t.Fatal(answers, err)
	}
	devices := answers["u-1"].Devices
	if len(devices) != 1 || devices[0].DeviceName != first || devices[0].PoolName != env.Node+"/gpu" || len(devices[0].CdiDeviceIds) != 1 {
		t.Errorf("the kubelet receives %v", devices)
	}
	if len(e.Specs()) != 1 {
		t.Errorf("specs: %v", e.Specs())
	}
	e.Eventually("status.devices", func() (bool, string) {
		devices := e.StoredClaim(c.Name).Status.Devices
		return len(devices) == 1 && devices[0].Device == first, "not written"
	})
	if !strings.Contains(e.MetricsText(), `nvidia_dra_prepared_devices{device_type="gpu",driver="gpu.nvidia.com",node="n1"} 1`) {
		t.Errorf("prepared devices are not counted:\n%s", e.MetricsText())
	}
	e.Unprepare(c)
	if len(e.Specs()) != 0 {
		t.Errorf("left: %v", e.Specs())
	}
	e.CheckClean()
}

func TestPlugin_InvalidClaimInACall_FailsAlone(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	good := e.AddClaim("u-1", first, "")
	bad := e.AddClaim("u-2", second, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`)
	errs := e.Prepare(good, bad)
	if errs["u-1"] != "" || !strings.Contains(errs["u-2"], "sharring") {
		t.Errorf("%q", errs)
	}
	e.Event("ResourceClaim", bad.Name, "InvalidParameters", "sharring", "create the claim anew")
	other := e.AddClaim("u-3", first, "")
	if err := e.Prepare(other)["u-3"]; !strings.Contains(err, good.Name) {
		t.Errorf("the second claim of a GPU gets the error %q", err)
	}
	e.Event("ResourceClaim", other.Name, "DeviceInUse")
}

func TestPlugin_HolderOfDeviceUnreadable_IsRefusedAtOnce(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	old, next := e.AddClaim("u-1", first, ""), e.AddClaim("u-2", first, "")
	if err := e.Prepare(old)["u-1"]; err != "" {
		t.Fatal(err)
	}
	e.Client.PrependReactor("get", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.(clienttesting.GetAction).GetName() == old.Name, nil, errors.New("connection refused")
	})
	// A wait for the claim ends with another remedy.
	if err := e.Prepare(next)["u-2"]; !strings.Contains(err, "is held by claim ns/"+old.Name) || strings.Contains(err, "is ending") {
		t.Errorf("%q", err)
	}
}

func TestPlugin_DeviceOfEndingClaim_IsWaitedFor(t *testing.T) {
	for name, end := range map[string]func(e testEnv, claim string) error{
		"claim deleted": func(e testEnv, claim string) error {
			return e.Client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), claim, metav1.DeleteOptions{})
		},
		"claim not reserved": func(e testEnv, claim string) error {
			c := e.StoredClaim(claim)
			c.Status.ReservedFor = nil
			_, err := e.Client.ResourceV1().ResourceClaims("ns").UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.start()
			e.Published(gpu.KindGPU, 8)
			old, next := e.AddClaim("u-1", first, ""), e.AddClaim("u-2", first, "")
			if err := e.Prepare(old)["u-1"]; err != "" {
				t.Fatal(err)
			}
			if err := end(e, old.Name); err != nil {
				t.Fatal(err)
			}
			seen := make(chan struct{})
			var once sync.Once
			e.Client.PrependReactor("get", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.(clienttesting.GetAction).GetName() == old.Name {
					once.Do(func() { close(seen) })
				}
				return false, nil, nil
			})
			prepared := make(chan string, 1)
			go func() { prepared <- e.Prepare(next)["u-2"] }()
			select {
			case err := <-prepared:
				t.Fatalf("the claim was not waited for: %q", err)
			case <-seen:
			}
			e.Unprepare(old)
			if err := <-prepared; err != "" {
				t.Error(err)
			}
		})
	}
}

func TestPlugin_PanicInOneClaim_FailsThatClaimOnly(t *testing.T) {
	e := newEnv(t)
	var broken atomic.Bool
	e.Edit = func(_ context.Context, d plan.Device) error {
		if d.Name == second && broken.Load() {
			panic("a bug")
		}
		return nil
	}
	e.start()
	e.Published(gpu.KindGPU, 8)
	broken.Store(true)
	errs := e.Prepare(e.AddClaim("u-1", first, ""), e.AddClaim("u-2", second, ""))
	if errs["u-1"] != "" || !strings.Contains(errs["u-2"], "bug of the driver") || strings.Contains(errs["u-2"], "goroutine") {
		t.Errorf("%q", errs)
	}
	broken.Store(false)
	if err := e.Prepare(e.AddClaim("u-4", "gpu-0000-52-00-0", ""))["u-4"]; err != "" {
		t.Error("the plugin does not go on:", err)
	}
}

func TestPlugin_GPUsLost_SlicesFollowAndHeldStay(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	if err := e.Prepare(e.AddClaim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	simtest.Change(t, e.Machine, func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[1].Lost = true, true })
	e.Published(gpu.KindGPU, 7)
	e.Eventually("the held GPU tainted", func() (bool, string) { return len(e.Devices()[first].Taints) == 1, "no taint" })
	e.Event("Pod", "pod-u-1", "DeviceUnhealthy", first, "the GPU has fallen off the bus", "drain the node")
	if err := e.Prepare(e.AddClaim("u-2", second, ""))["u-2"]; !strings.Contains(err, "lost") {
		t.Errorf("a claim for a lost GPU gets the error %q", err)
	}
	simtest.Change(t, e.Machine, func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[1].Lost = false, false })
	e.Published(gpu.KindGPU, 8)
	e.Eventually("no taint", func() (bool, string) { return len(e.Devices()[first].Taints) == 0, "a taint" })
	simtest.Change(t, e.Machine, func(s *engine.State) { s.DriverLoaded = false })
	e.Published(gpu.KindGPU, 1)
	if _, held := e.Devices()[first]; !held {
		t.Errorf("what stays is not the held GPU: %v", e.Devices())
	}
}

func TestPlugin_OlderInstance_ServesAndDoesNotPublish(t *testing.T) {
	e := newEnv(t)
	e.SetNewest(false)
	e.start()
	// It serves all the same.
	e.Eventually("a claim prepared", func() (bool, string) {
		c := "u-1"
		if _, err := e.Client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "claim-u-1", metav1.GetOptions{}); err != nil {
			e.AddClaim(c, first, "")
		}
		answers, err := e.Kubelet.Prepare(t.Context(), env.KubeletClaim(c))
		return err == nil && answers[c].Error == "", "not yet"
	})
	if n := len(e.Devices()); n > 0 {
		t.Fatalf("an older instance published %d devices", n)
	}
	e.SetNewest(true)
	e.Published(gpu.KindGPU, 8)
	e.SetNewest(false)
	e.Eventually("publishing ended", func() (bool, string) {
		return !strings.Contains(e.MetricsText(), "gpu_dra_published_devices{"), "it goes on"
	})
}

func TestPlugin_ServerWithoutTaints_PublishesNoMonitors(t *testing.T) {
	e := newEnv(t)
	e.Drop = func(s *resourceapi.ResourceSlice) {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints, s.Spec.Devices[i].AllowMultipleAllocations = nil, nil
		}
	}
	e.start()
	e.Published(gpu.KindGPU, 8)
	e.Published(gpu.KindMonitor, 0)
}

func TestPlugin_APIServerAwayAtStart_UnpreparesAndPublishesLater(t *testing.T) {
	e := newEnv(t)
	var away atomic.Bool
	away.Store(true)
	e.Client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	e.start()
	// A pod can end without an API server.
	e.Unprepare(env.KubeletClaim("u-9"))
	away.Store(false)
	e.Published(gpu.KindGPU, 8)
}

func TestPlugin_StopDuringPrepare_RollsBack(t *testing.T) {
	e := newEnv(t)
	entered, release := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	e.Edit = func(ctx context.Context, _ plan.Device) error {
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
	e.start()
	e.Published(gpu.KindGPU, 8)
	hold.Store(true)
	c := e.AddClaim("u-1", first, "")
	answered := make(chan string, 1)
	go func() {
		answers, err := e.Kubelet.Prepare(context.Background(), c)
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- answers["u-1"].Error
	}()
	<-entered
	began := time.Now()
	e.Stop()
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the end took %s", took)
	}
	if text := <-answered; text == "" {
		t.Error("the held call was answered well")
	}
	if len(e.Specs()) > 0 {
		t.Errorf("half a claim is left: %v", e.Specs())
	}
	hold.Store(false)
	e.start()
	if err := e.Prepare(c)["u-1"]; err != "" {
		t.Error("the next plugin:", err)
	}
}

func TestPlugin_SpecsDeleted_WritesThemAgain(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	if err := e.Prepare(e.AddClaim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	if err := os.RemoveAll(e.CDIDir()); err != nil {
		t.Fatal(err)
	}
	e.Eventually("the spec written again", func() (bool, string) { return len(e.Specs()) == 1, "none" })
}

// TestPlugin_MinorNumbersChange_SpecFollows enumerates two GPUs anew, as a reload of the same driver does after a GPU was
// lost. A container that restarts must not get the device node of another GPU. Recover runs again after the first scan, so
// only a second change shows that a change starts it.
func TestPlugin_MinorNumbersChange_SpecFollows(t *testing.T) {
	for name, setUp := range map[string]func(e testEnv){
		"seen by a scan": func(testEnv) {},
		"seen without a scan": func(e testEnv) {
			e.Kernel = func() string { return inventory.Bindings(e.Machine.SysRoot) }
			e.Tick = func(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			setUp(e)
			e.start()
			e.Published(gpu.KindGPU, 8)
			if err := e.Prepare(e.AddClaim("u-1", first, ""))["u-1"]; err != "" {
				t.Fatal(err)
			}
			// GPU 0 has another number each time, so that a scan shows each change.
			for minor, order := range map[int][]int{1: {1, 0, 2}, 2: {1, 2, 0}} {
				simtest.Change(t, e.Machine, func(s *engine.State) {
					for _, i := range order {
						s.Remove(&s.GPUs[i])
					}
				})
				simtest.Change(t, e.Machine, func(s *engine.State) {
					for _, i := range order {
						s.Add(&s.GPUs[i])
					}
				})
				e.Rebound.Fire()
				e.Eventually(fmt.Sprintf("the spec with /dev/nvidia%d", minor), func() (bool, string) {
					spec, err := os.ReadFile(filepath.Join(e.CDIDir(), "k8s."+env.Driver+"-claim_u-1.json"))
					has := func(n int) bool { return strings.Contains(string(spec), fmt.Sprintf(`/dev/nvidia%d"`, n)) }
					return err == nil && has(minor) && !has(0) && !has(3-minor), string(spec)
				})
			}
			e.CheckClean()
		})
	}
}

// TestPlugin_DriverUnloaded_RemovesSpecUntilItIsBack follows a spec whose numbers the kernel does not confirm.
func TestPlugin_DriverUnloaded_RemovesSpecUntilItIsBack(t *testing.T) {
	e := newEnv(t)
	e.Kernel = func() string { return inventory.Bindings(e.Machine.SysRoot) }
	e.start()
	e.Published(gpu.KindGPU, 8)
	claim := e.AddClaim("u-1", first, "")
	if err := e.Prepare(claim)["u-1"]; err != "" {
		t.Fatal(err)
	}
	loaded := func(on bool) {
		simtest.Change(t, e.Machine, func(s *engine.State) { s.DriverLoaded = on })
		e.Eventually(fmt.Sprintf("a spec: %v", on), func() (bool, string) { return (len(e.Specs()) == 1) == on, fmt.Sprint(e.Specs()) })
	}
	loaded(false)
	e.Event("ResourceClaim", claim.Name, "DriverNotReady", "keep the CDI spec failed", "it was removed")
	// The scan of the GPUs or the driver's files show it first.
	if err := e.Prepare(claim)["u-1"]; !strings.Contains(err, "DriverNotReady") || !strings.Contains(err, "oad the driver on the node") {
		t.Errorf("Prepare without the driver: %q", err)
	}
	loaded(true)
	loaded(false)
	e.Unprepare(claim)
	e.CheckClean()
}

func TestPlugin_RecordDamaged_IsReported(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	if err := e.Prepare(e.AddClaim("u-1", first, ""))["u-1"]; err != "" {
		t.Fatal(err)
	}
	e.Stop()
	path := filepath.Join(e.DataDir(), "state", "records", "claims", "u-1.json")
	if err := os.WriteFile(path, []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.start()
	e.Event("ResourceClaim", "claim-u-1", "RecordUnreadable", "quarantine")
	if !strings.Contains(e.MetricsText(), "gpu_dra_quarantined_records") {
		t.Error("quarantine is not counted")
	}
	if err := e.Prepare(e.AddClaim("u-2", first, ""))["u-2"]; !strings.Contains(err, "claim-u-1") {
		t.Errorf("the damaged record does not block its GPU: %q", err)
	}
}

// startProbed starts a plugin with a health service, and returns a function that waits for an answer of it.
func (e testEnv) startProbed() (probe func(healthpb.HealthCheckResponse_ServingStatus)) {
	e.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.Fatal(err)
	}
	e.HealthPort = listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	e.start()
	conn, err := grpc.NewClient("127.0.0.1:"+strconv.Itoa(e.HealthPort), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = conn.Close() })
	return func(want healthpb.HealthCheckResponse_ServingStatus) {
		e.Helper()
		e.Eventually(want.String(), func() (bool, string) {
			answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
			return err == nil && answer.Status == want, "not yet"
		})
	}
}

func TestPlugin_AllWell_ReportsHealth(t *testing.T) {
	e := newEnv(t)
	probe := e.startProbed()
	e.Published(gpu.KindGPU, 8)
	probe(healthpb.HealthCheckResponse_SERVING)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := e.Kubelet.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	e.Published(gpu.KindMonitor, 8)
	e.Eventually("all devices are published", func() (bool, string) {
		n := len(e.Devices())
		return n == len(report.Devices) && n > 200, fmt.Sprintf("%d, and the health of %d is reported", n, len(report.Devices))
	})
}

// TestPlugin_SocketRemoved_IsUnhealthy removes a socket while the connections through it live. The kubelet forgets a plugin
// without its registration socket, and a restarted kubelet finds neither.
func TestPlugin_SocketRemoved_IsUnhealthy(t *testing.T) {
	for name, dir := range map[string]func(testEnv) string{
		"registration": func(e testEnv) string { return e.RegistrarDir() }, "calls": func(e testEnv) string { return e.DataDir() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			probe := e.startProbed()
			probe(healthpb.HealthCheckResponse_SERVING)
			sockets, err := filepath.Glob(filepath.Join(dir(e), "*.sock"))
			if len(sockets) != 1 || err != nil {
				t.Fatalf("%v, %v", sockets, err)
			}
			if err := os.Remove(sockets[0]); err != nil {
				t.Fatal(err)
			}
			probe(healthpb.HealthCheckResponse_NOT_SERVING)
		})
	}
}

// TestPlugin_OtherDriverOfThatName_StopsAndPublishesNothing has another driver that registers first, and one that registers later.
func TestPlugin_OtherDriverOfThatName_StopsAndPublishesNothing(t *testing.T) {
	other := func(e testEnv) {
		l, err := net.Listen("unix", filepath.Join(e.RegistrarDir(), env.Driver+"-reg.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	ends := func(e testEnv, ended <-chan error) {
		t.Helper()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "another DRA driver is registered as "+env.Driver) {
				t.Errorf("the plugin ends with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the plugin does not end")
		}
		e.Event("Node", env.Node, "DeviceInUse", "another DRA driver", "GPUCluster")
	}
	run := func(e testEnv) <-chan error {
		e.Make()
		e.PodUID = "pod-uid"
		e.Host = host.New(host.Options{BootIDFile: e.Machine.BootIDFile})
		ended := make(chan error, 1)
		p := build(e.Env)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() { ended <- p(ctx) }()
		return ended
	}
	t.Run("first", func(t *testing.T) {
		e := newEnv(t)
		e.Make()
		other(e)
		ends(e, run(e))
		if n := len(e.Slices()); n > 0 {
			t.Errorf("%d slices are published", n)
		}
	})
	t.Run("later", func(t *testing.T) {
		e := newEnv(t)
		ended := run(e)
		e.Published(gpu.KindGPU, 8)
		other(e)
		ends(e, ended)
	})
}

// TestPlugin_GPUNeedsReset_TellsItsPodAndRecovers follows a fault from the driver to the pod and back, across a restart.
func TestPlugin_GPUNeedsReset_TellsItsPodAndRecovers(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	holder := e.AddClaim("u-1", first, "")
	if errs := e.Prepare(holder); errs["u-1"] != "" {
		t.Fatal(errs)
	}
	recovery := func(action int) {
		simtest.Change(t, e.Machine, func(s *engine.State) { s.GPUs[0].Recovery = action })
	}
	taint := func(name, want string) {
		t.Helper()
		e.Eventually(fmt.Sprintf("%s is tainted as %q", name, want), func() (bool, string) {
			taints := e.Devices()[name].Taints
			return (len(taints) == 1 && taints[0].Value == want) || want == "" && len(taints) == 0, fmt.Sprint(taints)
		})
	}
	condition := func(want string) {
		t.Helper()
		e.Eventually("condition Healthy is "+want, func() (bool, string) {
			for _, d := range e.StoredClaim(holder.Name).Status.Devices {
				for _, c := range d.Conditions {
					if c.Type == "Healthy" {
						return string(c.Status) == want, c.Message
					}
				}
			}
			return want == "", "there is none"
		})
	}
	recovery(1)
	for _, name := range []string{first, first + "-mig-1g-10gb-0", "nvlink-8-0000-1b-00-0"} {
		taint(name, "reset")
	}
	taint(second, "")
	e.Event("Pod", "pod-u-1", "DeviceUnhealthy", first, "the driver asks for a reset of the GPU", "nvidia-smi -r -i")
	e.Event("Node", env.Node, "DeviceNotReady", "the driver asks for a reset of the GPU")
	condition("False")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := e.Kubelet.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range report.Devices {
		if d.Device.DeviceName == first && (d.Health != healthapi.HealthStatus_UNHEALTHY || !strings.Contains(d.Message, "reset of the GPU")) {
			t.Errorf("health of %s: %v, %q", first, d.Health, d.Message)
		}
	}
	if errs := e.Prepare(holder); errs["u-1"] != "" {
		t.Errorf("a prepared claim: %v", errs)
	}
	e.Unprepare(holder)
	late := e.AddClaim("u-2", first, "")
	if err := e.Prepare(late)["u-2"]; !strings.Contains(err, "the driver asks for a reset") {
		t.Errorf("a new claim: %q", err)
	}
	e.Stop()
	e.start()
	taint(first, "reset")
	recovery(0)
	for _, name := range []string{first, first + "-mig-1g-10gb-0", "nvlink-8-0000-1b-00-0"} {
		taint(name, "")
	}
	if errs := e.Prepare(late); errs["u-2"] != "" {
		t.Error(errs)
	}
	e.CheckClean()
}
