// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "write the table of docs/simulator.md")

const (
	page  = "../../docs/simulator.md"
	begin = "<!-- programs: begin, written by go -C test test ./programs -run Table -update -->\n"
	end   = "<!-- programs: end -->\n"
)

// foreign is a program of others, with what it must find on a simulated board.
type foreign struct {
	name, module, pins string // pins is the go.mod with its version
	does               string
	// suits says on which boards it is to work.
	suits func(profiles.Profile) bool
	check func(*testing.T, *simtest.DriverRoot, *engine.State) error
}

func everyBoard(profiles.Profile) bool { return true }

var programs = []foreign{
	{
		"`devices`, an example of go-nvml", "github.com/NVIDIA/go-nvml", "toolkit", "lists each GPU's UUID by NVML", everyBoard,
		func(t *testing.T, m *simtest.DriverRoot, s *engine.State) error {
			out := run(t, m, "devices")
			for _, i := range s.OnBus() {
				if !strings.Contains(out, "uuid="+s.GPUs[i].UUID+"\n") {
					return fmt.Errorf("no %s in\n%s", s.GPUs[i].UUID, out)
				}
			}
			return nil
		},
	},
	{
		"`compute-processes`, an example of go-nvml", "github.com/NVIDIA/go-nvml", "toolkit", "lists the processes on each GPU", everyBoard,
		func(t *testing.T, m *simtest.DriverRoot, s *engine.State) error {
			simtest.Change(t, m, func(s *engine.State) {
				s.GPUs[0].Processes = []engine.Process{{PID: uint32(os.Getpid()), MemoryMiB: 5}}
			})
			defer simtest.Change(t, m, func(s *engine.State) { s.GPUs[0].Processes = nil })
			out := run(t, m, "compute-processes")
			if !strings.Contains(out, fmt.Sprintf("Pid:%d UsedGpuMemory:%d", os.Getpid(), 5<<20)) {
				return fmt.Errorf("no process in\n%s", out)
			}
			return nil
		},
	},
	{
		"`gpu-feature-discovery`", "github.com/NVIDIA/k8s-device-plugin", "nvidia", "writes the node's labels", everyBoard,
		func(t *testing.T, m *simtest.DriverRoot, s *engine.State) error {
			labels := theirs(t, m, "none", "version: v1\n")
			if got, want := labels["nvidia.com/gpu.count"], fmt.Sprint(len(s.OnBus())); got != want || labels["nvidia.com/gpu.product"] == "" {
				return fmt.Errorf("%s GPUs, want %s: %v", got, want, labels)
			}
			return nil
		},
	},
	{
		"`nvidia-device-plugin`", "github.com/NVIDIA/k8s-device-plugin", "nvidia", "offers the GPUs to a kubelet", everyBoard,
		func(t *testing.T, m *simtest.DriverRoot, s *engine.State) error {
			var want []string
			for _, i := range s.OnBus() {
				want = append(want, s.GPUs[i].UUID)
			}
			slices.Sort(want)
			if got := offered(t, m); !slices.Equal(got, want) {
				return fmt.Errorf("it offers %v, want %v", got, want)
			}
			return nil
		},
	},
	{
		"`nvidia-mig-parted`", "github.com/NVIDIA/mig-parted", "nvidia", "switches the MIG mode on and off, and checks it",
		func(p profiles.Profile) bool { return p.Board.MIGCapable },
		func(t *testing.T, m *simtest.DriverRoot, _ *engine.State) error {
			layouts := write(t, "version: v1\nmig-configs: {split: [{devices: all, mig-enabled: true, mig-devices: {}}], whole: [{devices: all, mig-enabled: false}]}\n")
			for _, layout := range []string{"split", "whole"} {
				for _, verb := range []string{"apply", "assert"} {
					run(t, m, "nvidia-mig-parted", verb, "--config-file", layouts, "--selected-config", layout)
				}
			}
			return nil
		},
	},
	{
		"`nvidia-ctk cdi generate`", "github.com/NVIDIA/nvidia-container-toolkit", "toolkit", "writes a CDI specification", everyBoard,
		func(t *testing.T, m *simtest.DriverRoot, s *engine.State) error {
			got := generated(t, m)
			delete(got, "all")
			if len(got) != len(s.OnBus()) {
				return fmt.Errorf("the devices are %v", got)
			}
			return nil
		},
	},
}

// version returns the version of a module in tools/NAME/go.mod.
func version(t *testing.T, module, name string) string {
	t.Helper()
	for line := range strings.Lines(string(read(t, filepath.Join("../../tools", name, "go.mod")))) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == module {
			return words[1]
		}
	}
	t.Fatalf("tools/%s/go.mod has no version of %s", name, module)
	return ""
}

// TestTable_ProgramsOfOthers_RunOnEveryBoard runs each program unmodified on a machine with each board, and writes the table.
func TestTable_ProgramsOfOthers_RunOnEveryBoard(t *testing.T) {
	for _, example := range []string{"devices", "compute-processes"} {
		paths[example] = built(t, "github.com/NVIDIA/go-nvml/examples/"+example)
	}
	paths["nvidia-ctk"] = built(t, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk")
	ran, meant := map[string]int{}, map[string]int{}
	for _, name := range profiles.Names() {
		profile, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			m := simtest.Root(t, name, func(o *driverroot.Options) { o.GPUs = min(len(profile.Slots), 2) })
			s, err := m.State()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range programs {
				if !p.suits(profile) {
					continue
				}
				meant[p.name]++
				if err := p.check(t, m, s); err != nil {
					t.Errorf("%s: %v", p.name, err)
				} else {
					ran[p.name]++
				}
			}
		})
	}
	var b strings.Builder
	b.WriteString("| program | version | does | boards |\n| --- | --- | --- | --- |\n")
	for _, p := range programs {
		boards := fmt.Sprintf("%d of %d", ran[p.name], meant[p.name])
		if ran[p.name] == len(profiles.Names()) {
			boards = fmt.Sprintf("all %d", ran[p.name])
		} else if ran[p.name] == meant[p.name] {
			boards = fmt.Sprintf("the %d with MIG", ran[p.name])
		}
		fmt.Fprintf(&b, "| %s | `%s` %s | %s | %s |\n", p.name, p.module, version(t, p.module, p.pins), p.does, boards)
	}
	if t.Failed() {
		return
	}
	text := string(read(t, page))
	head, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", page, begin, end)
	}
	switch whole := head + begin + b.String() + end + after; {
	case *update:
		if err := os.WriteFile(page, []byte(whole), 0o644); err != nil {
			t.Fatal(err)
		}
	case whole != text:
		t.Errorf("the table of %s has drifted; go -C test test ./programs -run Table -update writes\n%s", page, b.String())
	}
}

// registration is the kubelet's service for device plugins.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	endpoints chan string
}

func (r registration) Register(_ context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if q.ResourceName == "nvidia.com/gpu" {
		r.endpoints <- q.Endpoint
	}
	return &pluginapi.Empty{}, nil
}

// asKubelet puts the directory KUBELET at the kubelet's path, which the device plugin does not let one choose.
const asKubelet = `mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins && mount --bind "$KUBELET" /var/lib/kubelet/device-plugins && ` + enter

// offered returns the devices that NVIDIA's device plugin offers to a kubelet, sorted.
func offered(t *testing.T, m *simtest.DriverRoot) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") // The path of a socket is short.
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := registration{endpoints: make(chan string, 1)}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, kubelet)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", asKubelet, "sh", program(t, "nvidia-device-plugin"), "--device-discovery-strategy", "nvml", "--driver-root-ctr-path", m.Path, "--config-file", write(t, "version: v1\n"))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append(os.Environ(), "KUBELET="+dir, "GPUSIM_ROOT="+m.Path, "LD_LIBRARY_PATH="+filepath.Dir(m.Library))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() { cancel(); <-ended }
	var endpoint string
	select {
	case endpoint = <-kubelet.endpoints:
		defer stop()
	case err := <-ended:
		t.Fatalf("the device plugin ended: %v\n%s", err, output.String())
	case <-ctx.Done():
		<-ended
		t.Fatalf("the device plugin did not register\n%s", output.String())
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range answer.Devices {
		if d.Health == pluginapi.Healthy {
			ids = append(ids, d.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
