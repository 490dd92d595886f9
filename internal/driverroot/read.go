// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	securejoin "github.com/cyphar/filepath-securejoin"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/nvml/native"
)

func (r *Root) readCommon(version string) (edits specs.ContainerEdits, err error) {
	nodes, err := r.describe(controlNodes...)
	if err != nil {
		return edits, err
	}
	cuda := "libcuda.so." + version
	driverRoot, err := filepath.EvalSymlinks(r.o.DriverRoot)
	if err != nil {
		return edits, fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	roots := []string{driverRoot}
	if behind := driverprogram.UserSpace(driverRoot, cuda); behind != "" && behind != driverRoot {
		roots = append(roots, behind)
	}
	found := false
	for _, root := range roots {
		err = r.ask(root, native.Described{DriverVersion: version}, func(lib nvcdi.Interface) error {
			common, err := lib.GetCommonEdits()
			if err != nil {
				return fmt.Errorf("%w: the files of driver %s under %s: %w", ErrIncomplete, version, root, err)
			}
			edits = *common.ContainerEdits
			return nil
		})
		if found = slices.ContainsFunc(edits.Mounts, named(cuda)); found {
			break
		}
	}
	if err != nil {
		return edits, err
	}
	if !found {
		return edits, fmt.Errorf("%w: no %s under %s, though the kernel module is of that version; install the user "+
			"space of the same driver",
			ErrIncomplete, cuda, r.o.DriverRoot)
	}
	mountPrograms(&edits, roots)
	// nvcdi adds the pipe directory of the host's MPS daemon. Containers must use the daemons of their claims only.
	edits.Mounts = slices.DeleteFunc(edits.Mounts, named("nvidia-mps"))
	complete(&edits, nodes)
	return edits, r.finish(&edits)
}

func (r *Root) readGPU(version string, device Device) (edits specs.ContainerEdits, err error) {
	nodes, err := r.describe(gpuNode(device))
	if err != nil {
		return edits, fmt.Errorf("GPU at %s: %w", device.PCIAddress, err)
	}
	described := native.Described{DriverVersion: version, UUID: device.UUID, BusID: device.PCIAddress,
		Minor: device.Minor}
	err = r.ask(r.o.DriverRoot, described, func(lib nvcdi.Interface) error {
		devices, err := lib.GetDeviceSpecsByID(device.UUID)
		if err != nil {
			return err
		}
		if len(devices) != 1 {
			return fmt.Errorf("%d CDI devices instead of one", len(devices))
		}
		edits = devices[0].ContainerEdits
		return nil
	})
	if err == nil {
		complete(&edits, nodes)
		err = r.finish(&edits)
	}
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("container edits of the GPU at %s: %w", device.PCIAddress, err)
	}
	return edits, nil
}

// ask calls nvcdi on a driver root and recovers from panics. The files are foreign data, and a newer nvcdi may call
// NVML functions that Described lacks.
func (r *Root) ask(driverRoot string, lib native.Described, question func(nvcdi.Interface) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("nvcdi failed on the driver root %s: %v", driverRoot, p)
		}
	}()
	// nvcdi evaluates links in its results, so compare with the evaluated root
	driverRoot, err = filepath.EvalSymlinks(driverRoot)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	dev, _ := r.dev()
	l, err := nvcdi.New(
		nvcdi.WithLogger(logger{}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDriverRoot(driverRoot),
		nvcdi.WithDevRoot(dev),
		nvcdi.WithNVIDIACDIHookPath(r.o.HookPath),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithLdconfigPath(r.ldconfig()),
		// It obeys variables of the container, which fails on partitions, on cgroup v1 and with older drivers, and it
		// loads NVML, which a static program cannot.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
	)
	if err != nil {
		return fmt.Errorf("start nvcdi: %w", err)
	}
	return question(l)
}

// LDConfigs lists where nodes have ldconfig, which a hook runs: distributions with the usual directories, Talos'
// extension glibc, NixOS.
var LDConfigs = []string{
	"/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/local/glibc/sbin/ldconfig", "/run/current-system/sw/bin/ldconfig",
}

// ErrNoLDConfig says that a hook of every container cannot run.
var ErrNoLDConfig = errors.New("the node has no ldconfig (looked for " + strings.Join(LDConfigs, ", ") + ")")

// CheckLDConfig returns ErrNoLDConfig for a node without an ldconfig. The node's root directory can be unknown.
func (r *Root) CheckLDConfig() error {
	if entries, err := os.ReadDir(filepath.Join(r.o.ProcRoot, "1/root")); err != nil || len(entries) == 0 ||
		r.ldconfig() != "" {
		return nil
	}
	return ErrNoLDConfig
}

// ldconfig returns the node's ldconfig by the root directory of its first process. It is empty if that is not known, or
// without an ldconfig.
func (r *Root) ldconfig() string {
	node := filepath.Join(r.o.ProcRoot, "1/root")
	for _, path := range LDConfigs {
		if file, err := securejoin.SecureJoin(node, path); err == nil {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	return ""
}

// finish converts paths of this process to host paths. It describes device nodes in full, so that the container
// runtime need not read them.
func (r *Root) finish(edits *specs.ContainerEdits) error {
	driverRoot, err := filepath.EvalSymlinks(r.o.DriverRoot)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	for _, n := range edits.DeviceNodes {
		if n.Major == 0 {
			return fmt.Errorf("%w: %s could not be read as a device node", ErrIncomplete, n.Path)
		}
		n.Type = "c"
		n.Permissions = "rw"
	}
	dev, hostDev := r.dev()
	spec := &specs.Spec{ContainerEdits: *edits}
	transformer := root.NewDriverTransformer(
		root.WithDriverRoot(driverRoot), root.WithTargetDriverRoot(r.o.HostDriverRoot),
		root.WithDevRoot(dev), root.WithTargetDevRoot(hostDev),
	)
	if err := transformer.Transform(spec); err != nil {
		return fmt.Errorf("translate to host paths: %w", err)
	}
	*edits = spec.ContainerEdits
	for _, h := range edits.Hooks {
		h.Path = r.o.HookPath // already a host path, whatever its prefix
	}
	for _, n := range edits.DeviceNodes {
		if n.HostPath == n.Path {
			n.HostPath = "" // same meaning, and every CDI version can read it
		}
	}
	return nil
}

// programs are the driver's programs in containers, as nvcdi has them.
var programs = []string{
	"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control",
	"nvidia-cuda-mps-server", "nvidia-imex",
	"nvidia-imex-ctl",
}

// searched lists the directories of programs that a container's PATH has.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// mountPrograms mounts the driver's programs at the path that the driver root has for them. nvcdi mounts a link's
// target at the target's path, which no PATH has, and does not find absolute links of a root that is not /.
func mountPrograms(edits *specs.ContainerEdits, roots []string) {
	for _, name := range programs {
		for _, root := range roots {
			path, file, ok := driverprogram.Locate(root, name)
			if !ok {
				continue
			}
			if !slices.Contains(searched, filepath.Dir(path)) {
				path = filepath.Join("/usr/bin", name)
			}
			edits.Mounts = append(slices.DeleteFunc(edits.Mounts, named(name)), &specs.Mount{
				HostPath: file, ContainerPath: path, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
			})
			break
		}
	}
}

func named(file string) func(*specs.Mount) bool {
	return func(m *specs.Mount) bool { return strings.HasSuffix(m.ContainerPath, "/"+file) }
}

// logger logs nvcdi's messages at a verbosity above the default: nvcdi warns about every missing optional file.
type logger struct{}

func (logger) Errorf(f string, a ...any)   { klog.V(6).Infof("nvcdi: "+f, a...) }
func (logger) Warningf(f string, a ...any) { klog.V(6).Infof("nvcdi: "+f, a...) }
func (logger) Infof(f string, a ...any)    { klog.V(8).Infof("nvcdi: "+f, a...) }
func (logger) Debugf(f string, a ...any)   { klog.V(8).Infof("nvcdi: "+f, a...) }
func (logger) Tracef(f string, a ...any)   { klog.V(8).Infof("nvcdi: "+f, a...) }
