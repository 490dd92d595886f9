// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/testing/apiservertest"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/internal/testing/kubelettest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
	simroot "gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// The GPUs of the test, by what happens to them.
const (
	whole = iota
	cut
	byMPS
	byTime
	served
	// late comes to the node while claims are prepared, and is cordoned.
	late
	logged
	faulty
)

// program is the plugin over a simulated machine.
type program struct {
	*env.Env
	server *apiservertest.Server
	gpus   []engine.GPU
	log    logBuffer
}

// logBuffer is the program's log.
type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *logBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(data)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

func (p *program) name(slot int) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(p.gpus[slot].Address)
}

func (p *program) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// state returns the machine's GPU.
func (p *program) state(gpu int) engine.GPU {
	p.Helper()
	s, err := p.Machine.State()
	p.must(err)
	return s.GPUs[gpu]
}

// change changes the machine's GPU.
func (p *program) change(gpu int, do func(s *engine.State, g *engine.GPU)) {
	p.Helper()
	simtest.Change(p.T, p.Machine, func(s *engine.State) { do(s, &s.GPUs[gpu]) })
}

func newProgram(t *testing.T) *program {
	p := &program{Env: env.New(t)}
	p.ServerVersion("v1.36.1") // The scheduler of this version allocates partitions wrongly.
	p.server = apiservertest.Serve(t, p.Client, nil)
	dir, err := os.MkdirTemp("", "wiring") // A socket's path must be short.
	p.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p.Dir, p.Machine = dir, simtest.Root(t, "dgx-a100-40", nil)
	p.Machine.Use(t)
	simtest.Change(t, p.Machine, func(s *engine.State) {
		s.Profile.Driver.CUDA, s.GPUs[late].OffBus = engine.MemoryLimits, true
		p.gpus = slices.Clone(s.GPUs)
	})
	stop, err := kubelettest.ServePodResources(dir, &podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{p.gpus[served].UUID}})
	p.must(err)
	t.Cleanup(stop)
	p.must(errors.Join(
		os.Mkdir(filepath.Join(p.Machine.SysRoot, "fs"), 0o755), os.Symlink(cgroups(t), filepath.Join(p.Machine.SysRoot, "fs/cgroup")),
		os.Symlink(p.Machine.Path, filepath.Join(dir, "host")), os.Mkdir(filepath.Join(dir, "image"), 0o755), os.MkdirAll(filepath.Join(dir, "p"), 0o755),
		os.Mkdir(p.RegistrarDir(), 0o755), os.Mkdir(filepath.Join(dir, "mps"), 0o755),
		os.WriteFile(filepath.Join(dir, "image/nvidia-cdi-hook"), []byte("#!/bin/sh\nexit 3\n"), 0o755),
		os.WriteFile(filepath.Join(dir, "image", memorylimit.HookName), []byte("#!/bin/sh\n"), 0o755),
	))
	return p
}

// cgroups returns this machine's cgroups of version 2, which every Linux has, if only beside those of version 1.
func cgroups(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	t.Fatal("no cgroups of version 2 are mounted")
	return ""
}

// supervisor answers as that of MPS daemons. It starts none.
type supervisor struct {
	mu      sync.Mutex
	list    mpsd.List
	changed chan struct{}
	// calls has the requests that change a daemon.
	calls []string
}

// set makes the supervisor list the daemons.
func (s *supervisor) set(daemons ...mpsd.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
	s.list = mpsd.List{Version: s.list.Version + "+", Daemons: daemons}
}

// called reports whether a request was sent. The other value is all requests.
func (s *supervisor) called(request string) (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.calls, request), fmt.Sprint(s.calls)
}

func (s *supervisor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		if r.URL.Query().Get("after") == s.list.Version {
			changed := s.changed
			s.mu.Unlock()
			select {
			case <-changed:
			case <-r.Context().Done():
			}
			s.mu.Lock()
		}
		_ = json.NewEncoder(w).Encode(s.list)
		return
	}
	s.calls = append(s.calls, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1/daemons/"))
	var d mpsd.Daemon
	_ = json.NewDecoder(r.Body).Decode(&d) // A deletion has none.
	_ = json.NewEncoder(w).Encode(mpsd.Status{Daemon: d, PID: 1, Since: time.Now()})
}

func (s *supervisor) serve(p *program) {
	p.Helper()
	listener, err := net.Listen("unix", filepath.Join(p.Dir, "mps", mpsd.SocketName))
	p.must(err)
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(listener) }()
	p.Cleanup(func() { _ = server.Close() })
}

// start runs the program with the machine's paths and the arguments.
func (p *program) start(args ...string) {
	p.Helper()
	args = append(args, "--node-name="+env.Node, "--kubeconfig="+p.server.Kubeconfig,
		"--nvidia-driver-root="+filepath.Join(p.Dir, "host"), "--container-driver-root="+p.Machine.Path, "--dev-root="+p.Machine.Path, "--cdi-root="+p.CDIDir(),
		"--nvidia-cdi-hook-path="+filepath.Join(p.Dir, "image/nvidia-cdi-hook"), "--kubelet-plugins-directory-path="+p.DataDir(),
		"--kubelet-registrar-directory-path="+p.RegistrarDir(), "--kubelet-pod-resources-directory-path="+p.Dir,
		"--proc-root="+p.Machine.ProcRoot, "--sys-root="+p.Machine.SysRoot, "--boot-id-file="+p.Machine.BootIDFile)
	p.Start(func(e *env.Env) func(context.Context) error {
		return func(ctx context.Context) error {
			if code := run(ctx, args, nil, io.Discard, &p.log); code != 0 {
				return fmt.Errorf("exit code %d: %s", code, &p.log)
			}
			return nil
		}
	})
}

// http gets a path of the program's server.
func (p *program) http(path string) string {
	p.Helper()
	found := regexp.MustCompile(`"Serving HTTP" address="([^"]+)"`).FindStringSubmatch(p.log.String())
	if found == nil {
		p.Fatal("the log has no address of the server")
	}
	response, err := http.Get("http://" + found[1] + path)
	p.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	p.must(err)
	return string(body)
}

// has waits for a line of the program's metrics that begins with the text.
func (p *program) has(what, sample string) {
	p.Helper()
	p.Eventually(what+": "+sample, func() (bool, string) {
		text := p.http("/m")
		return strings.Contains(text, "\n"+sample), text
	})
}

// tainted waits for a taint of a GPU.
func (p *program) tainted(what string, gpu int, key, value string, effect resourceapi.DeviceTaintEffect) {
	p.Helper()
	p.Eventually(what, func() (bool, string) {
		taints := p.Devices()[p.name(gpu)].Taints
		return slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool { return t.Key == key && t.Value == value && t.Effect == effect }), fmt.Sprint(taints)
	})
}

// prepare prepares a claim of a device.
func (p *program) prepare(uid, device, parameters string) {
	p.Helper()
	if err := p.Prepare(p.AddClaim(uid, device, parameters))[uid]; err != "" {
		p.Fatalf("prepare %s: %s", device, err)
	}
}

const gpuConfig = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`

// fifo returns a file that each reader waits for. A reader gets the text of one write, which waits for the reader.
func (p *program) fifo(name string) (path string, write func(text string) error) {
	p.Helper()
	path = filepath.Join(p.Dir, name)
	p.must(unix.Mkfifo(path, 0o600))
	return path, func(text string) error {
		written := make(chan error, 1)
		go func() { written <- os.WriteFile(path, []byte(text), 0) }()
		select {
		case err := <-written:
			return err
		case <-time.After(20 * time.Second):
			return fmt.Errorf("nothing reads %s", path)
		}
	}
}

// shared reports whether several claims can have a GPU.
func (p *program) shared(gpu int) bool {
	many := p.Devices()[p.name(gpu)].AllowMultipleAllocations
	return many != nil && *many
}

// spec returns the CDI spec of a claim.
func (p *program) spec(uid string) string {
	p.Helper()
	for _, file := range p.Specs() {
		if strings.Contains(file, "claim_"+uid) {
			data, err := os.ReadFile(filepath.Join(p.CDIDir(), file))
			p.must(err)
			return string(data)
		}
	}
	return ""
}

// TestRun_EachPart_HasItsEffect runs the program with all its parts over a simulated machine, and looks for an effect of each part
// and of each option. A part that is not started, or gets the value of another one, costs an effect here.
func TestRun_EachPart_HasItsEffect(t *testing.T) {
	const profile = "1g.5gb"
	p := newProgram(t)
	data := filepath.Join(p.DataDir(), env.Driver)
	sums := filepath.Join(data, "state/usage.json")
	p.must(errors.Join(os.MkdirAll(filepath.Dir(sums), 0o700), os.WriteFile(sums, nil, 0o600)))
	mps := &supervisor{}
	mps.set(mpsd.Status{Daemon: mpsd.Daemon{Name: p.name(logged), UUID: p.gpus[logged].UUID}, PID: 1}) // No claim needs it.
	mps.serve(p)
	asked := demand.State{Since: map[string]time.Time{}, Written: time.Now(), Nodes: 1, Samples: []string{}}
	p.must(p.Client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "driver", Name: "demand"}, Data: demand.Encode(asked)}))
	sharing, writeSharing := p.fifo("sharing.yaml")
	port := apiservertest.FreePort(t)
	const publish = "publish: [{profiles: Auto}]\n"
	first := make(chan error, 1)
	go func() { first <- writeSharing(publish + "sharing: {strategy: None}\n") }()
	p.start(
		"--pod-uid=plugin-uid", "--pod-namespace=driver", "--http-endpoint=127.0.0.1:0", "--metrics-path=/m", "--pprof-path=/p", "--metrics-idle",
		"--healthcheck-port="+port, "--allow-gpu-reset", "--mig-mode-idle=1ns", "--mps-dir="+filepath.Join(p.Dir, "mps"), "--sharing-config="+sharing,
		"--demand-configmap=demand", "--scheduler-version=v1.37.1", "--health-evict=reset", "--health-reset=WhenIdle", "--health-taint-xids=13", "--health-ignore-xids=43",
		"--kernel-log="+filepath.Join(p.Machine.Path, simroot.KernelLog), "--v=4", "--container-memory-limits",
	)
	p.must(<-first)

	// The kubelet, and the parts without a claim.
	if want := filepath.Join(data, "dra-plugin-uid.sock"); p.Kubelet.Info.Name != env.Driver || p.Kubelet.Info.Endpoint != want {
		t.Errorf("the plugin registers as %v, want %s", p.Kubelet.Info, want)
	}
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	p.must(err)
	defer conn.Close()
	p.Eventually("the health service answers", func() (bool, string) {
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return answer.GetStatus() == healthpb.HealthCheckResponse_SERVING, fmt.Sprint(answer, err)
	})
	if !p.server.Knows("dra-kubelet-plugin/" + version) {
		t.Error("the requests do not name the program")
	}
	p.Event("Node", env.Node, "HostFailure", "run the CDI hook", "exit status 3")
	for _, file := range []string{"nvidia-cdi-hook", memorylimit.HookName} {
		p.Eventually(file+" is installed", func() (bool, string) {
			_, err := os.Stat(filepath.Join(data, file))
			return err == nil, fmt.Sprint(err)
		})
	}
	p.Eventually("the daemon that no claim needs is ended", func() (bool, string) { return mps.called("DELETE " + p.name(logged)) })

	// The slices.
	p.Eventually("the GPUs are published, but not the device plugin's", func() (bool, string) {
		devices := p.Devices()
		_, other := devices[p.name(served)]
		_, own := devices[p.name(logged)]
		return own && !other, fmt.Sprint(slices.Sorted(maps.Keys(devices)))
	})
	device := p.Devices()[p.name(whole)]
	for _, name := range []resourceapi.QualifiedName{"resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"} {
		if _, known := device.Attributes[name]; !known {
			t.Errorf("the GPU has no %s of /sys", name)
		}
	}
	if p.shared(whole) {
		t.Error("the GPU is shared in spite of the first settings")
	}
	if owners := p.Slices()[0].OwnerReferences; len(owners) != 1 || owners[0].UID != "node-uid" {
		t.Errorf("the slices belong to %v", owners)
	}
	p.Published(gpu.KindMIG, 0)
	p.must(writeSharing(publish))
	p.Eventually("the changed settings share GPUs, by MPS", func() (bool, string) {
		by := p.Devices()[p.name(whole)].Attributes["isolation"].StringValue
		return p.shared(whole) && by != nil && *by == "mps", fmt.Sprint(by)
	})
	p.must(os.WriteFile(sharing+".new", []byte(publish), 0o600))
	p.must(os.Rename(sharing+".new", sharing))
	asked.Since[profile] = time.Now()
	asked.Serving = map[string][]string{profile: {env.Node}}
	_, err = p.Client.CoreV1().ConfigMaps("driver").Update(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "driver", Name: "demand"}, Data: demand.Encode(asked),
	}, metav1.UpdateOptions{})
	p.must(err)
	p.Published(gpu.KindMIG, 6*7)
	_, err = p.Client.CoreV1().Nodes().Update(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: env.Node, UID: "node-uid", Annotations: map[string]string{wire.CordonAnnotation(env.Driver, p.name(late)): "NoSchedule"},
	}}, metav1.UpdateOptions{})
	p.must(err)

	p.has("GPUs without a claim are measured", `gpu_dra_device_temperature_celsius{device="`+p.name(logged))

	// The claims.
	p.prepare("whole", p.name(whole), "")
	for what, text := range map[string]string{
		"libraries at the path of the node": filepath.Join(p.Dir, "host") + "/usr/lib", "device nodes": "/dev/nvidia0",
		"hook": filepath.Join(data, "nvidia-cdi-hook"), "metadata": "dra-device-attributes", "metadata's file": filepath.Join(data, "state/mounted"),
	} {
		if spec := p.spec("whole"); !strings.Contains(spec, text) {
			t.Errorf("the container has no %s %s: %s", what, text, spec)
		}
	}
	p.prepare("cut", p.name(cut)+"-mig-1g-5gb-0", "")
	if g := p.state(cut); !g.MIGEnabled || len(g.Instances) != 1 {
		t.Errorf("the GPU of the partition is %+v", g)
	}
	p.prepare("mps", p.name(byMPS), gpuConfig+`{"strategy":"MPS"}}`)
	if called, calls := mps.called("PUT " + p.name(byMPS)); !called || nvml.ComputeMode(p.state(byMPS).ComputeMode) != nvml.ComputeExclusiveProcess {
		t.Errorf("the supervisor got %s; the GPU's compute mode is %d", calls, p.state(byMPS).ComputeMode)
	}
	share := env.Claim("share", p.name(logged), "")
	share.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("7c4f8b4e-2f0c-4f2e-9a59-3f1b1f1f0a01"))
	share.Status.Allocation.Devices.Results[0].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}
	p.must(p.Client.Tracker().Add(share))
	if err := p.Prepare(env.KubeletClaim("share"))["share"]; err != "" {
		t.Errorf("prepare a share: %s", err)
	}
	for _, text := range []string{filepath.Join(data, memorylimit.HookName), "--requests=" + filepath.Join(data, "memory-limits"), filepath.Join(p.Dir, "mps", p.name(logged))} {
		if spec := p.spec("share"); !strings.Contains(spec, text) {
			t.Errorf("the container of a share has no %s: %s", text, spec)
		}
	}
	p.prepare("time", p.name(byTime), gpuConfig+`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`)
	if slice := p.state(byTime).TimeSlice; slice != 3 {
		t.Errorf("the time slice is %d", slice)
	}
	p.Eventually("the claim's status has its device", func() (bool, string) {
		devices := p.StoredClaim("claim-whole").Status.Devices
		return len(devices) == 1, fmt.Sprint(devices)
	})
	// The machine refuses the limit of a file in place of a cgroup, and the refusal is an answer.
	answered, err := requests.Ask(t.Context(), p.Host, filepath.Join(data, "memory-limits"), memorylimit.Request{
		Device: p.name(byMPS), Address: p.gpus[byMPS].Address, UUID: p.gpus[byMPS].UUID, Bytes: 1 << 30, Cgroup: "/cgroup.procs",
	})
	if want := "the cgroups in " + filepath.Join(p.Machine.SysRoot, "fs/cgroup"); !answered || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the request of a memory limit: answered %v, %v", answered, err)
	}
	mps.set(mpsd.Status{Daemon: mpsd.Daemon{Name: p.name(byMPS), UUID: p.gpus[byMPS].UUID}, PID: 2, Restarts: 1})
	p.Event("Pod", "pod-mps", "MPSDaemonDied", p.name(byMPS))

	// Faults.
	raise := func(gpu int, xid uint64) {
		p.change(gpu, func(s *engine.State, g *engine.GPU) { s.RaiseXID(g, xid, "") })
	}
	// No set has an XID that comes while the next one is made.
	p.Eventually("the event set has an XID", func() (bool, string) {
		raise(whole, 31)
		text := p.http("/m")
		return strings.Contains(text, `xid="31"} `), text
	})
	p.Event("Pod", "pod-whole", "XIDError", "XID 31")
	// The session for XIDs hides a new GPU, until the kernel's lists show it.
	p.change(late, func(_ *engine.State, g *engine.GPU) { g.OffBus = false })
	p.Eventually("the kernel's log has an XID", func() (bool, string) {
		raise(logged, 13)
		taints := p.Devices()[p.name(logged)].Taints
		return len(taints) > 0 && taints[0].Value == health.Named, fmt.Sprint(taints)
	})
	p.change(faulty, func(s *engine.State, g *engine.GPU) { p.must(s.SetRecovery(g, "reset")) })
	p.tainted("the driver asks for a reset", faulty, wire.UnhealthyTaint, health.Reset, resourceapi.DeviceTaintEffectNoExecute)

	p.tainted("a new GPU is published, and the cordon of the Node is followed", late, wire.CordonTaint, "", resourceapi.DeviceTaintEffectNoSchedule)

	// Measurements.
	for what, sample := range map[string]string{
		"build": `gpu_dra_build_info{goversion="` + runtime.Version() + `",version="unknown"} 1`, "records": `nvidia_dra_prepared_devices{device_type="mig",driver="gpu.nvidia.com",node="n1"} 1`,
		"health":           `gpu_dra_device_recovery_action{uuid="` + p.gpus[whole].UUID + `"} 0`,
		"stuck partitions": "gpu_dra_stuck_partitions 0", "usage": `gpu_dra_claim_allocated_gpu_seconds_total{claim="claim-whole"`,
	} {
		p.has(what, sample)
	}
	if text := p.http("/p/cmdline"); !strings.Contains(text, "-test.") {
		t.Errorf("the profiles' server answers %q", text)
	}

	// The end of claims.
	p.Unprepare(env.KubeletClaim("share"), env.KubeletClaim("cut"), env.KubeletClaim("mps"), env.KubeletClaim("time"))
	p.Eventually("settings that no claim needs are restored", func() (bool, string) {
		modes := fmt.Sprint(p.state(cut).MIGEnabled, p.state(byMPS).ComputeMode, p.state(byTime).TimeSlice, p.state(faulty).Recovery)
		return modes == "false 0 0 0", modes
	})

	// Claims that are deleted while the program does not run. A process without a meaning has the GPU of one open.
	p.prepare("part", p.name(byMPS)+"-mig-1g-5gb-0", "")
	p.prepare("held", p.name(byTime), "")
	p.Stop()
	if _, err := os.Stat(filepath.Join(data, "state/kernellog.json")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(sums); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of GPU seconds stays: %v", err)
	}
	for _, uid := range []string{"whole", "part", "held"} {
		p.must(p.Client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), "claim-"+uid, metav1.DeleteOptions{}))
	}
	for pid, of := range map[string]struct {
		name string
		gpu  int
	}{"77": {"onlooker", whole}, "78": {"worker", byTime}} {
		dir := filepath.Join(p.Machine.ProcRoot, pid)
		p.must(errors.Join(os.MkdirAll(filepath.Join(dir, "fd"), 0o755), os.WriteFile(filepath.Join(dir, "comm"), []byte(of.name+"\n"), 0o600),
			os.Symlink(fmt.Sprint("/dev/nvidia", p.gpus[of.gpu].Minor), filepath.Join(dir, "fd/5"))))
	}
	p.start(
		"--pod-uid=plugin-2", "--healthcheck-port=-1", "--vanished-claim-grace=1ns", "--ignored-processes=onlooker", "--device-metadata=false", "--mig-devices=false",
		"--monitor-devices=false", "--v=2",
	)
	p.Eventually("deleted claims that nothing uses are released", func() (bool, string) {
		specs := fmt.Sprint(p.Specs())
		return p.spec("whole") == "" && p.spec("part") == "", specs
	})
	p.Event("ResourceClaim", "claim-held", "HostFailure", "process 78 (worker")
	p.Published(gpu.KindMIG, 0)
	p.Published(gpu.KindMonitor, 0)
	p.prepare("plain", p.name(whole), "")
	if strings.Contains(p.spec("plain"), "dra-device-attributes") {
		t.Error("a container gets metadata in spite of the flag")
	}
	if err := p.Prepare(p.AddClaim("no-mps", p.name(byMPS), gpuConfig+`{"strategy":"MPS"}}`))["no-mps"]; !strings.Contains(err, "--mps-dir is empty") {
		t.Errorf("without the flag, MPS is refused with %q", err)
	}

	// A driver root that is not complete.
	p.Stop()
	libraries, err := filepath.Glob(filepath.Join(p.Machine.Path, simroot.LibDir, "libcuda.so*"))
	p.must(err)
	for _, library := range libraries {
		p.must(os.Remove(library))
	}
	p.start("--pod-uid=plugin-3", "--healthcheck-port=-1")
	p.tainted("no claim gets a GPU whose libraries are missing", whole, wire.UnhealthyTaint, string(resourceslices.NotReady), resourceapi.DeviceTaintEffectNoSchedule)
}

// TestBackground_PartsThatRun_AreStarted compares the parts that can run with those that are started. It finds a part whose
// effects take longer than the test above.
func TestBackground_PartsThatRun_AreStarted(t *testing.T) {
	machine := host.New(host.Options{})
	defer machine.Close()
	d, err := newDriver(t.Context(), parsed(t, "--http-endpoint=127.0.0.1:0", "--demand-configmap=c", "--pod-namespace=n"), machine)
	if err != nil {
		t.Fatal(err)
	}
	d.cgroups = "/sys/fs/cgroup" // As of a machine with cgroups of version 2, and the hook.
	started := map[uintptr]bool{}
	for _, r := range append(d.background(), d.gpus.devicePlugins, d.events) { // The plugin starts the latter two itself.
		started[reflect.ValueOf(r).Pointer()] = true
	}
	runner, found := reflect.TypeFor[kubeletplugin.Runner](), 0
	for i := range reflect.TypeOf(*d).NumField() {
		part := reflect.ValueOf(d).Elem().Field(i)
		if part.Type().Implements(runner) && !started[part.Pointer()] {
			t.Errorf("%s is not started", part.Type())
		}
		for j := range part.Type().Elem().NumField() {
			inner := part.Elem().Field(j)
			if inner.Kind() != reflect.Pointer || !inner.Type().Implements(runner) {
				continue
			}
			if found++; !started[inner.Pointer()] {
				t.Errorf("%s of %s is not started", inner.Type(), part.Type())
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d parts can run", found)
	}
}
