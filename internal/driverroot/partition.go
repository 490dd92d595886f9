// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// ErrNoPartition says that the kernel driver does not have the MIG partition.
var ErrNoPartition = errors.New("the NVIDIA kernel driver has no such MIG partition")

// addPartition adds the capabilities of a partition's GPU instance and compute instance to a GPU's edits. Without
// them CUDA sees no device; with them it sees only that partition. The edits describe their device nodes in full,
// because the host may lack the nodes. The caller owns the edits.
func (r *Root) addPartition(edits *specs.ContainerEdits, device Device) error {
	p := device.Partition
	if p.UUID == "" {
		return fmt.Errorf("%w: %s of the GPU at %s has not been made", ErrNoPartition, device.Name, device.PCIAddress)
	}
	major, err := r.capsMajor()
	if err != nil {
		return err
	}
	instance := fmt.Sprintf("gi%d", p.GPUInstance)
	for _, capability := range []string{instance, filepath.Join(instance, fmt.Sprintf("ci%d", p.ComputeInstance))} {
		n, err := r.capability(device.Minor, capability)
		if err != nil {
			return fmt.Errorf("%s of the GPU at %s: %w", device.Name, device.PCIAddress, err)
		}
		mode := os.FileMode(0o444)
		edits.DeviceNodes = append(edits.DeviceNodes, &specs.DeviceNode{
			Path:        fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n),
			Type:        "c",
			Major:       major,
			Minor:       int64(n),
			FileMode:    &mode,
			Permissions: "r",
		})
	}
	return nil
}

// accessForm matches a line of a capability's access file.
var accessForm = regexp.MustCompile(`(?m)^DeviceFileMinor:\s*(\d+)\s*$`)

// capability returns the minor number of a GPU's capability, such as "gi7" or "gi7/ci0".
func (r *Root) capability(gpu int, name string) (int, error) {
	path := r.proc("capabilities", fmt.Sprintf("gpu%d", gpu), "mig", name, "access")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w (there is no %s); it was destroyed outside of this driver", ErrNoPartition, path)
	}
	if err != nil {
		return 0, fmt.Errorf("read a MIG capability: %w", err)
	}
	if n, ok := parseMinor(accessForm, data); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%w: %s names no minor number", ErrIncomplete, path)
}

// capsMajor returns the kernel's major number for the driver's capabilities.
func (r *Root) capsMajor() (int64, error) {
	path := filepath.Join(r.o.ProcRoot, "devices")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the kernel's device numbers: %w", err)
	}
	if n, ok := parseMajor(data, "nvidia-caps"); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%w: %s has no line for nvidia-caps; load the driver with MIG support (nvidia-modprobe -f "+
		"/proc/driver/nvidia/capabilities/mig/config)",
		ErrIncomplete, path)
}

func parseMajor(data []byte, name string) (int64, bool) {
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) == 2 && string(fields[1]) == name {
			n, err := strconv.ParseInt(string(fields[0]), 10, 32)
			return n, err == nil && n > 0
		}
	}
	return 0, false
}

// ComputeCapability returns the device node of a partition's compute instance. Processes that use the partition have
// it open. It returns ErrNoPartition if the partition does not exist.
func (r *Root) ComputeCapability(device Device) (string, error) {
	minor, err := r.minor(device)
	if err != nil {
		return "", err
	}
	p := device.Partition
	n, err := r.capability(minor, fmt.Sprintf("gi%d/ci%d", p.GPUInstance, p.ComputeInstance))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("nvidia-cap%d", n), nil
}

// addSwitches adds the NVSwitches of the group's GPUs to its edits, if the node has device nodes for them.
func (r *Root) addSwitches(edits *specs.ContainerEdits) error {
	dev, _ := r.dev()
	paths, err := filepath.Glob(filepath.Join(dev, "dev", "nvidia-nvswitch*"))
	if err != nil || len(paths) == 0 {
		return err
	}
	var switches specs.ContainerEdits
	for _, path := range paths {
		var s unix.Stat_t
		if unix.Lstat(path, &s) != nil || s.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue // Removed meanwhile, or no device: a group works without it.
		}
		switches.DeviceNodes = append(switches.DeviceNodes, &specs.DeviceNode{
			Path:     filepath.Join("/dev", filepath.Base(path)),
			HostPath: path,
			Major:    int64(unix.Major(s.Rdev)),
			Minor:    int64(unix.Minor(s.Rdev)),
		})
	}
	if err := r.finish(&switches); err != nil {
		return err
	}
	edits.DeviceNodes = append(edits.DeviceNodes, switches.DeviceNodes...)
	return nil
}

// versionForm matches "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build …".
var versionForm = regexp.MustCompile(`(?m)^NVRM version:.*?Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

// minorForm matches a line of /proc/driver/nvidia/gpus/<address>/information.
var minorForm = regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)\s*$`)

func (r *Root) proc(elem ...string) string {
	return filepath.Join(append([]string{r.o.ProcRoot, "driver", "nvidia"}, elem...)...)
}

// driverVersion returns the version of the kernel module. The libraries must have the same version.
func (r *Root) driverVersion() (string, error) {
	path := r.proc("version")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w (there is no %s); load the driver on the node (modprobe nvidia, or start the "+
			"driver container)",
			ErrDriverNotLoaded, path)
	}
	if err != nil {
		return "", fmt.Errorf("read the driver's version: %w", err)
	}
	return parseVersion(path, data)
}

func parseVersion(path string, data []byte) (string, error) {
	m := versionForm.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%w: %s names no version of the kernel module", ErrIncomplete, path)
	}
	return string(m[1]), nil
}

// minor returns the GPU's minor number of this boot from the kernel, or else the plan's.
func (r *Root) minor(device Device) (int, error) {
	path := r.proc("gpus", device.PCIAddress, "information")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w at PCI address %s (there is no %s); it fell off the bus or was unbound, see the "+
			"kernel log",
			ErrNoGPU, device.PCIAddress, path)
	}
	if err != nil {
		return 0, fmt.Errorf("read the minor number of the GPU at %s: %w", device.PCIAddress, err)
	}
	if n, ok := parseMinor(minorForm, data); ok {
		return n, nil
	}
	return device.Minor, nil
}

func parseMinor(form *regexp.Regexp, data []byte) (int, bool) {
	m := form.FindSubmatch(data)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(m[1]))
	return n, err == nil && n < 1<<20
}
