// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/mpsd"
	driverspec "gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

var (
	runcPath = flag.String("runc", "", "runc, for containers with the driver's edits; without it no container runs")
	hookPath = flag.String("hook", "/usr/bin/nvidia-cdi-hook", "the nvidia-cdi-hook of these containers")
)

// container is a container with a GPU, by the runtime that Kubernetes' runtimes use.
type container struct {
	root string // of its file system
	dir  string
	spec oci.Spec
}

// newContainer makes a root file system of the C library and this test's binary alone, and adds the driver's edits.
func newContainer(t *testing.T, uid uint32, edits ...specs.ContainerEdits) *container {
	t.Helper()
	dir, err := os.MkdirTemp("/var", "hardware-container-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c := &container{root: filepath.Join(dir, "rootfs"), dir: dir}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.copy(t, self, "/client")
	c.copy(t, "/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2")
	for _, lib := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"} {
		for _, at := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"} {
			if _, err := os.Stat(filepath.Join(at, lib)); err == nil {
				c.copy(t, filepath.Join(at, lib), "/lib64/"+lib)
				break
			}
		}
	}
	for _, at := range []string{"etc", "tmp", "usr/bin", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(c.root, at), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.spec = oci.Spec{
		Version: oci.Version, Root: &oci.Root{Path: "rootfs"}, Hostname: "container",
		Process: &oci.Process{
			Args: []string{"/client"}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cwd: "/",
			User: oci.User{UID: uid, GID: uid}, NoNewPrivileges: true, Capabilities: &oci.LinuxCapabilities{},
		},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &oci.Linux{
			Namespaces: []oci.LinuxNamespace{{Type: oci.PIDNamespace}, {Type: oci.IPCNamespace}, {Type: oci.UTSNamespace}, {Type: oci.MountNamespace}, {Type: oci.NetworkNamespace}},
			Resources:  &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	for _, e := range edits {
		if err := (&cdi.ContainerEdits{ContainerEdits: &e}).Apply(&c.spec); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *container) copy(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(filepath.Join(c.root, to)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.root, to), data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run runs the container and returns what it printed.
func (c *container) run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	spec := c.spec
	process := *spec.Process
	process.Args, process.Env = args, append(append([]string(nil), process.Env...), env...)
	spec.Process = &process
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("hardware-%d-%d", os.Getpid(), time.Now().UnixNano())
	state := filepath.Join(c.dir, "state")
	cmd := exec.Command(*runcPath, "--root", state, "run", "--bundle", c.dir, name)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	late := time.AfterFunc(60*time.Second, func() { _ = exec.Command(*runcPath, "--root", state, "kill", name, "KILL").Run() })
	err = cmd.Wait()
	late.Stop()
	if out, deleteErr := exec.Command(*runcPath, "--root", state, "delete", "--force", name).CombinedOutput(); deleteErr != nil && !bytes.Contains(out, []byte("does not exist")) {
		t.Errorf("delete the container: %v: %s", deleteErr, out)
	}
	return strings.TrimSpace(out.String()), err
}

// client runs a CUDA program in the container.
func (c *container) client(t *testing.T, program client, env ...string) (a answer) {
	t.Helper()
	out, err := c.run(t, append(env, program.variable()), "/client")
	if jsonErr := json.Unmarshal([]byte(out), &a); jsonErr != nil || err != nil {
		a.Error = strings.TrimSpace(fmt.Sprintf("%v %v %s", err, jsonErr, out))
	}
	return a
}

// driverRoots are the roots to try: the flag's, and the one of hosts whose driver is below /usr/local/nvidia.
func driverRoots() []string {
	roots := []string{*driverRoot}
	if _, err := os.Stat("/usr/local/nvidia/lib64/libcuda.so.1"); err == nil && *driverRoot == "/" {
		roots = append(roots, "/usr/local/nvidia")
	}
	return roots
}

func TestContainer_DriversEdits_GPUWorks(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	if *runcPath == "" || !hasCUDA() {
		t.Log("no runc, or no libcuda.so.1: no container can be tried")
		return
	}
	g := s.GPUs[0]
	for _, root := range driverRoots() {
		t.Run(strings.Trim(root, "/"), func(t *testing.T) {
			key := "container." + root + "."
			r := driverroot.New(driverroot.Options{DriverRoot: root, DevRoot: *devRoot, ProcRoot: *procRoot, HookPath: *hookPath})
			common, commonErr := r.Common(t.Context())
			one, gpuErr := r.GPU(t.Context(), driverroot.Device{PCIAddress: g.PCIAddress, UUID: g.UUID, Minor: g.Minor})
			if err := errors.Join(commonErr, gpuErr); err != nil {
				note(key+"edits", err.Error())
				return
			}
			note(key+"edits", specs.ContainerEdits{DeviceNodes: append(common.DeviceNodes, one.DeviceNodes...), Hooks: common.Hooks, Env: common.Env, Mounts: common.Mounts})
			for _, uid := range []uint32{0, 1000} {
				c := newContainer(t, uid, common, one)
				key := fmt.Sprintf("%suid%d.", key, uid)
				a := c.client(t, client{MiB: 1 << 10})
				note(key+"cuda", a)
				if a.err() != nil {
					t.Errorf("user %d: %v", uid, a.err())
				}
				out, err := c.run(t, nil, "nvidia-smi", "-L")
				note(key+"nvidia-smi", fmt.Sprintf("%s | %s", outcome(err), out))
				switch {
				case isScript(filepath.Join(root, "usr/bin/nvidia-smi")):
					t.Log("nvidia-smi of this root is a script, for which the container has no shell")
				case err != nil || !strings.Contains(out, g.UUID):
					t.Errorf("nvidia-smi -L: %v: %s", err, out)
				}
			}
			m := startMPS(t, mpsd.Daemon{Users: "many"})
			if m == nil {
				return
			}
			limit := uint64(4 << 30)
			share := driverspec.DeviceEdits(one, plan.Claim{}, plan.Device{
				Request: "gpu", Name: m.want.Name, Kind: gpu.KindGPU, UUID: g.UUID, Share: plan.Share{UsableBytes: limit},
				Sharing: plan.Sharing{Strategy: v1beta1.StrategyMPS, MemoryLimit: &limit, ActiveThreadPercentage: 25},
			}, driverspec.Paths{MPS: m.dir})
			for _, uid := range []uint32{0, 1000} {
				c := newContainer(t, uid, common, share)
				a := c.client(t, client{MiB: 8 << 10})
				note(fmt.Sprintf("%suid%d.mps", key, uid), a)
				if a.err() != nil || a.MiB > 4<<10 {
					t.Errorf("user %d: %d MiB, %v", uid, a.MiB, a.err())
				}
			}
		})
	}
}

// isScript reports whether a file is a program for an interpreter.
func isScript(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && bytes.HasPrefix(text, []byte("#!"))
}

// TestContainer_NodesReadOnly_Outcome opens device nodes of mode 0444 as another user.
func TestContainer_NodesReadOnly_Outcome(t *testing.T) {
	_, s, ok := machine(t)
	if !ok || !hasCUDA() {
		return
	}
	g := s.GPUs[0]
	c := client{UID: 1000}
	for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", fmt.Sprintf("/dev/nvidia%d", g.Minor)} {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			note("nodes.read-only", err.Error())
			return
		}
		dir, err := os.MkdirTemp("/dev", "hardware-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		node := filepath.Join(dir, "node")
		if err := errors.Join(unix.Mknod(node, unix.S_IFCHR|0o444, int(stat.Rdev)), os.Chmod(node, 0o444)); err != nil {
			t.Fatal(err)
		}
		note("nodes.mode "+path, fmt.Sprintf("%o %d:%d", stat.Mode&0o7777, unix.Major(stat.Rdev), unix.Minor(stat.Rdev)))
		one := client{UID: 1000, Mounts: []mount{{From: node, To: path}}}
		_, a := one.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
		note("nodes.read-only "+path, outcome(a.err()))
		c.Mounts = append(c.Mounts, one.Mounts...)
	}
	_, a := c.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("nodes.read-only all", outcome(a.err()))
}
