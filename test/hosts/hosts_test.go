// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/mpsd/supervisor"
	simroot "gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/mps"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "write the table of docs/compatibility.md")

// TestMain lets the test's binary run as an MPS process, as the supervisor's binary does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervisor.EnterVerb {
		fmt.Fprintln(os.Stderr, supervisor.Enter(os.Args[2:]))
		os.Exit(1)
	}
	boxtest.Main(m)
}

// host is a simulated machine. The product gets driverRoot as its driver root.
type host struct {
	t *testing.T
	*simtest.DriverRoot
	driverRoot string
	selinux    bool
	gpu        engine.GPU
	partition  driverroot.Partition
}

// value is a state of a part of a host.
type value struct {
	name string
	// state changes the machine, files its files afterwards.
	state func(*engine.State)
	files func(*host)
}

// axes are the parts of a host, with their states; the first one is usual. The test tries all combinations, but those of an
// axis alone beside the usual states of the others.
var axes = []struct {
	name   string
	alone  bool
	values []value
}{
	{name: "device nodes", values: []value{
		{name: "present"},
		{name: "missing", state: func(s *engine.State) { s.NodesMissing = true }},
	}},
	{name: "`nvidia_uvm`", values: []value{
		{name: "loaded"},
		{name: "not loaded", state: func(s *engine.State) { s.UVMMissing = true }},
		{
			name: "cannot be loaded", state: func(s *engine.State) { s.UVMMissing = true },
			files: func(h *host) { h.remove(filepath.Join(h.Path, simroot.BinDir, simroot.ModprobeProgram)) },
		},
	}},
	{name: "driver root", values: []value{
		{name: "a root file system"},
		{name: "programs and libraries alone", files: func(h *host) { h.driverRoot = filepath.Join(h.Path, "usr") }},
		{name: "links to another directory", files: (*host).link},
		{name: "libraries of another version", files: (*host).otherVersion},
	}},
	{name: "SELinux", alone: true, values: []value{
		{name: "no"},
		{name: "yes", files: func(h *host) { h.selinux = true }},
	}},
	{name: "persistence mode", alone: true, values: []value{
		{name: "on"},
		{name: "off", state: func(s *engine.State) {
			for i := range s.GPUs {
				s.GPUs[i].Persistence = false
			}
		}},
	}},
}

func (h *host) remove(path string) {
	if err := os.RemoveAll(path); err != nil {
		h.t.Fatal(err)
	}
}

// link moves the driver to a directory of its own, and leaves absolute links, as some hosts have them for /usr/local/nvidia.
func (h *host) link() {
	for from, to := range map[string]string{simroot.BinDir: "nvidia/bin", simroot.LibDir: "nvidia/lib64"} {
		old := filepath.Join(h.Path, from)
		entries, err := os.ReadDir(old)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Join(h.Path, "nvidia"), 0o755), os.Rename(old, filepath.Join(h.Path, to)), os.Mkdir(old, 0o755))
		}
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range entries {
			if err := os.Symlink(filepath.Join("/", to, e.Name()), filepath.Join(old, e.Name())); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

func (h *host) otherVersion() {
	libraries, err := filepath.Glob(filepath.Join(h.Path, simroot.LibDir, "libcuda.so*"))
	if err != nil || len(libraries) == 0 {
		h.t.Fatal(libraries, err)
	}
	for _, path := range libraries {
		h.remove(path)
	}
	if err := os.WriteFile(filepath.Join(h.Path, simroot.LibDir, "libcuda.so.470.82.01"), nil, 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// newHost makes a machine with one GPU in MIG mode, which has a partition of the whole GPU.
func newHost(t *testing.T, values []value) *host {
	h := &host{t: t, DriverRoot: simtest.Root(t, "hgx-h100", func(o *simroot.Options) { o.GPUs = 1 })}
	h.driverRoot = h.Path
	simtest.Change(t, h, func(s *engine.State) {
		g := &s.GPUs[0]
		if code := s.SetMIGMode(g, true); code != 0 {
			t.Fatal(code)
		}
		instance, code := s.CreateInstance(g, 0, 0)
		if code != 0 {
			t.Fatal(code)
		}
		compute, code := s.CreateCompute(g, instance.ID, 0)
		if code != 0 {
			t.Fatal(code)
		}
		h.partition = driverroot.Partition{UUID: compute.UUID, GPUInstance: instance.ID, ComputeInstance: compute.ID}
		for _, v := range values {
			if v.state != nil {
				v.state(s)
			}
		}
		h.gpu = *g
	})
	for _, v := range values {
		if v.files != nil {
			v.files(h)
		}
	}
	return h
}

func (h *host) root() *driverroot.Root {
	return driverroot.New(driverroot.Options{DriverRoot: h.driverRoot, ProcRoot: h.ProcRoot, HookPath: "/hook", Load: true})
}

// edits returns the container edits of the GPU, or of its partition.
func (h *host) edits(p *driverroot.Partition) (edits specs.ContainerEdits, err error) {
	r := h.root()
	edits, err = r.Common(h.t.Context())
	if err != nil {
		return edits, err
	}
	device, err := r.GPU(h.t.Context(), driverroot.Device{Name: "gpu", PCIAddress: h.gpu.Address, UUID: h.gpu.UUID, Partition: p})
	edits.DeviceNodes = append(edits.DeviceNodes, device.DeviceNodes...)
	return edits, err
}

// whole checks that a container can use the GPU: its nodes have the kernel's numbers, and its files are on the host.
func (h *host) whole() error {
	edits, err := h.edits(nil)
	if err != nil {
		return err
	}
	return h.check(edits, "/dev/nvidiactl 195:255", "/dev/nvidia-uvm 510:0", "/dev/nvidia-uvm-tools 510:1", fmt.Sprintf("/dev/nvidia%d 195:%[1]d", h.gpu.Minor))
}

func (h *host) part() error {
	edits, err := h.edits(&h.partition)
	if err != nil {
		return err
	}
	return h.check(edits, "/dev/nvidia-uvm 510:0", "/dev/nvidia0 195:0",
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d 237:%[1]d", engine.InstanceMinor(0, h.partition.GPUInstance)),
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d 237:%[1]d", engine.ComputeMinor(0, h.partition.GPUInstance, h.partition.ComputeInstance)))
}

// wrong is an error of a host that should work.
type wrong struct{ error }

func (h *host) check(edits specs.ContainerEdits, nodes ...string) error {
	var have []string
	for _, n := range edits.DeviceNodes {
		have = append(have, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
	}
	for _, n := range nodes {
		if !slices.Contains(have, n) {
			return wrong{fmt.Errorf("no node %s among %v", n, have)}
		}
	}
	for _, file := range []string{"nvidia-smi", "libcuda.so."} {
		i := slices.IndexFunc(edits.Mounts, func(m *specs.Mount) bool { return strings.HasPrefix(filepath.Base(m.ContainerPath), file) })
		if i < 0 {
			return wrong{fmt.Errorf("no mount of %s", file)}
		}
		if _, err := os.Stat(edits.Mounts[i].HostPath); err != nil {
			return wrong{err}
		}
		if dir := filepath.Dir(edits.Mounts[i].ContainerPath); file == "nvidia-smi" && dir != "/usr/bin" && dir != "/bin" {
			return wrong{fmt.Errorf("no PATH has %s", dir)}
		}
	}
	return nil
}

// daemon starts an MPS daemon in a directory. stop ends it, also after an error.
func (h *host) daemon(ctx context.Context, dir string) (want mpsd.Daemon, stop func(), err error) {
	stop = func() {}
	s, err := supervisor.New(h.t.Context(), supervisor.Options{
		Dir: dir, Root: h.driverRoot, Shm: "1M", BootID: "boot", Log: log.New(io.Discard, "", 0),
		Filesystems: hosttest.Filesystems(h.t, h.selinux),
	})
	if err != nil {
		return want, stop, wrong{err}
	}
	serving, end := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving) }()
	client := mpsd.NewClient(filepath.Join(dir, mpsd.SocketName))
	want = mpsd.Daemon{Name: "gpu-0000-1b-00-0", UUID: h.gpu.UUID, MemoryLimit: new(uint64(1 << 30))}
	stop = func() {
		if err := client.Stop(ctx, want.Name); err != nil {
			h.t.Error(err)
		}
		end()
		<-served
		s.Close()
	}
	for {
		if _, err := client.List(ctx, ""); err == nil {
			break
		}
		select {
		case err := <-served:
			served <- err
			return want, stop, wrong{err}
		case <-time.After(time.Millisecond):
		}
	}
	_, err = client.Ensure(ctx, want)
	return want, stop, err
}

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() {
		if _, _, err := newHost(t, nil).daemon(t.Context(), filepath.Join(t.TempDir(), "mps")); err != nil {
			t.Fatal(err)
		}
	})
}

// share starts an MPS daemon, and a client of it.
func (h *host) share() error {
	if _, err := h.edits(nil); err != nil {
		return err
	}
	base, err := os.MkdirTemp("", "hosts-") // Short, for the path of a socket.
	if err != nil {
		h.t.Fatal(err)
	}
	defer h.remove(base)
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	dir, inside := filepath.Join(base, "mps"), filepath.Join(base, "container")
	want, stop, err := h.daemon(ctx, dir)
	defer stop()
	if err != nil {
		return err
	}
	for _, mounted := range []string{"pipe", "shm"} {
		context := hosttest.SELinuxContext(filepath.Join(dir, want.Name, mounted))
		if shared := strings.Contains(context, ":container_file_t:"); shared != h.selinux {
			return wrong{fmt.Errorf("containers with SELinux %v mount %s, which has the context %q", h.selinux, mounted, context)}
		}
	}
	err = errors.Join(os.MkdirAll(filepath.Join(inside, "dev"), 0o755), os.WriteFile(filepath.Join(inside, "dev/nvidia0"), nil, 0o644),
		os.Mkdir(filepath.Join(inside, "tmp"), 0o755), os.Symlink(filepath.Join(dir, want.Name, "pipe"), filepath.Join(inside, "tmp/nvidia-mps")),
		os.Symlink(filepath.Join(dir, want.Name, "shm"), filepath.Join(inside, "dev/shm")))
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := mps.Connect(ctx, []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"}, inside)
	if err != nil {
		return wrong{err}
	}
	return c.Close()
}

// says returns the cell of a result: an error ends with what to do.
func says(t *testing.T, err error) string {
	if err == nil {
		return "works"
	}
	i := strings.LastIndex(err.Error(), "; ")
	if bad := new(wrong); errors.As(err, bad) || i < 0 {
		t.Errorf("it does not work, and no sentence says what to do: %v", err)
		return "fails"
	}
	return "`" + err.Error()[i+len("; "):] + "`"
}

const (
	page  = "../../docs/compatibility.md"
	begin = "<!-- hosts: begin, written by go -C test test ./hosts -update -->\n"
	end   = "<!-- hosts: end -->\n"
)

func TestHosts_EachKindOfDevice_WorksOrSaysWhatToDo(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // An MPS daemon has a /tmp of its own.
	var b strings.Builder
	for _, a := range axes {
		b.WriteString("| " + a.name + " ")
	}
	b.WriteString("| whole GPU | partition | share |\n" + strings.Repeat("| --- ", len(axes)+3) + "|\n")
	for _, row := range rows() {
		name := ""
		for _, v := range row {
			name += "| " + v.name + " "
		}
		t.Run(strings.Trim(strings.ReplaceAll(name, " | ", ", "), "| "), func(t *testing.T) {
			cells := []string{says(t, newHost(t, row).whole()), says(t, newHost(t, row).part()), says(t, newHost(t, row).share())}
			b.WriteString(name + "| " + strings.Join(cells, " | ") + " |\n")
		})
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	now, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Fatalf("%s has no table between %q and %q", page, begin, end)
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case now != b.String():
		t.Errorf("the table of %s has drifted: run the test with -update. Its rows are now\n%s", page, b.String())
	}
}

// rows returns the combinations of the axes.
func rows() (all [][]value) {
	all = [][]value{nil}
	var usual []value
	for _, a := range axes {
		var longer [][]value
		for _, row := range all {
			for _, v := range a.values {
				longer = append(longer, append(slices.Clone(row), v))
				if a.alone {
					break
				}
			}
		}
		all, usual = longer, append(usual, a.values[0])
	}
	for i, a := range axes {
		for _, v := range a.values[1:] {
			if a.alone {
				row := slices.Clone(usual)
				row[i] = v
				all = append(all, row)
			}
		}
	}
	return all
}
