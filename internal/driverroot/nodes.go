// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"
)

// driverNode is a device node of the driver. /proc/devices has its major number under one of the names, if the module
// is loaded.
type driverNode struct {
	path  string
	names []string
	minor int64
	// module is the module to load.
	module string
}

var (
	frontend = []string{"nvidia", "nvidia-frontend"} // Older drivers have the second.
	uvm      = []string{"nvidia-uvm"}
)

// controlNodes lists the device nodes that belong to no GPU, and that CUDA and its tools need.
var controlNodes = []driverNode{
	{"/dev/nvidiactl", frontend, 255, "nvidia"}, {"/dev/nvidia-uvm", uvm, 0, "nvidia-uvm"},
	{"/dev/nvidia-uvm-tools", uvm, 1, "nvidia-uvm"},
}

func gpuNode(device Device) driverNode {
	return driverNode{node(device), frontend, int64(device.Minor), "nvidia"}
}

// describe returns the device nodes by the kernel's numbers. Nodes in the host's /dev can be missing, because a driver
// without nvidia-persistenced makes them at its first use. They can also be of before a reload of the driver.
func (r *Root) describe(wanted ...driverNode) (out []*specs.DeviceNode, err error) {
	path := filepath.Join(r.o.ProcRoot, "devices")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's device numbers: %w", err)
	}
	params, _ := os.ReadFile(r.proc("params"))
	mode, gid := parseParams(params)
	for _, n := range wanted {
		var major int64
		for _, name := range n.names {
			known, _ := parseMajor(data, name)
			major = cmp.Or(major, known)
		}
		if major == 0 {
			return nil, fmt.Errorf("%w: the kernel has no %s (%s has no line for %s); load the module on the node "+
				"with: modprobe %s",
				ErrIncomplete, n.path, path, n.names[0], n.module)
		}
		out = append(out, &specs.DeviceNode{
			Path: n.path, Type: "c", Major: major, Minor: n.minor, FileMode: mode, GID: gid, Permissions: "rw",
		})
	}
	return out, nil
}

// complete puts nodes into edits. A node of the host's /dev keeps its group and mode, and gets the kernel's numbers.
func complete(edits *specs.ContainerEdits, nodes []*specs.DeviceNode) {
	for _, n := range nodes {
		i := slices.IndexFunc(edits.DeviceNodes, func(o *specs.DeviceNode) bool {
			return o.Path == n.Path && o.Major != 0
		})
		if i >= 0 {
			edits.DeviceNodes[i].Major, edits.DeviceNodes[i].Minor = n.Major, n.Minor
			continue
		}
		edits.DeviceNodes = append(slices.DeleteFunc(edits.DeviceNodes, func(o *specs.DeviceNode) bool {
			return o.Path == n.Path
		}), n)
		// Other users than root open the node by its group.
		if n.GID != nil && n.FileMode != nil && *n.FileMode&0o006 != 0o006 &&
			!slices.Contains(edits.AdditionalGIDs, *n.GID) {
			edits.AdditionalGIDs = append(edits.AdditionalGIDs, *n.GID)
		}
	}
}

// numbers changes whenever the kernel's numbers, or the driver's mode and group of device nodes, change.
func (r *Root) numbers() string {
	devices, _ := os.ReadFile(filepath.Join(r.o.ProcRoot, "devices"))
	params, _ := os.ReadFile(r.proc("params"))
	var b strings.Builder
	for _, name := range slices.Concat(frontend, uvm) {
		major, _ := parseMajor(devices, name)
		fmt.Fprintf(&b, " %d", major)
	}
	mode, gid := parseParams(params)
	fmt.Fprintf(&b, " %v %v", ptr.Deref(mode, 0), ptr.Deref(gid, 0))
	return b.String()
}

var paramForm = regexp.MustCompile(`(?m)^DeviceFile(GID|Mode):\s*(\d+)\s*$`)

// parseParams returns the mode and the group that the driver gives to its device nodes. Without them a node has the
// runtime's mode, 0666, and belongs to root.
func parseParams(data []byte) (mode *os.FileMode, gid *uint32) {
	for _, m := range paramForm.FindAllSubmatch(data, -1) {
		n, err := strconv.ParseUint(string(m[2]), 10, 32)
		switch {
		case err != nil || n == 0:
		case string(m[1]) == "GID":
			gid = new(uint32(n))
		default:
			mode = new(os.FileMode(n).Perm())
		}
	}
	return mode, gid
}
