// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// ignoredProcesses have every GPU open and use none, or, MPS daemons, use it for others: killing a pod does not end them.
var ignoredProcesses = []string{"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-cuda-mps"}

// Usage asks the kubelet and the process table whether a claim that the API server no longer has is still in use.
type Usage struct {
	kubelet Kubelet
	o       UsageOptions
}

// UsageOptions configures a Usage; all fields are required.
type UsageOptions struct {
	// ProcRoot is the node's /proc, of its own PID namespace.
	ProcRoot string
	// Snapshot gives today's minor numbers.
	Snapshot func() gpu.Snapshot
	// Capability names the device node of a MIG device's compute instance: of partitions of one GPU, each process has
	// the GPU's node open and the capability of its own alone. Empty where the partition is gone.
	Capability func(plan.Device) (string, error)
	// Held gives the devices of all claims: a claim that is unknown may be on any GPU that no other holds.
	Held func() (plans []plan.Plan, incomplete bool, err error)
}

// NewUsage makes a Usage.
func NewUsage(kubelet Kubelet, o UsageOptions) *Usage { return &Usage{kubelet, o} }

// ReferencedByKubelet implements devicestate.Usage. The CDI devices that the kubelet lists carry the claim's UID, so that a
// new claim of the same name is not taken for the old one where the kubelet distinguishes them.
func (u *Usage) ReferencedByKubelet(ctx context.Context, claim plan.Claim) (referenced bool, err error) {
	err = u.kubelet.containers(ctx, func(c *podresources.ContainerResources) {
		for _, r := range c.GetDynamicResources() {
			referenced = referenced || refersTo(r, claim)
		}
	})
	return referenced, err
}

func refersTo(r *podresources.DynamicResource, claim plan.Claim) bool {
	if claim.Name != "" && r.GetClaimName() == claim.Name && r.GetClaimNamespace() == claim.Namespace {
		return true
	}
	return slices.ContainsFunc(r.GetClaimResources(), func(c *podresources.ClaimResource) bool {
		return slices.ContainsFunc(c.GetCdiDevices(), func(d *podresources.CDIDevice) bool {
			return strings.Contains(d.GetName(), claim.UID)
		})
	})
}

// OpenedBy implements devicestate.Usage. Devices of admin access do not count, because monitoring does not stop a
// release; nor do shares, whose device the processes of other claims have open as well: for them the kubelet's answer counts.
func (u *Usage) OpenedBy(ctx context.Context, devices []plan.Device) (string, error) {
	nodes, err := u.deviceNodes(devices)
	if err != nil || len(nodes) == 0 {
		return "", err
	}
	processes, err := os.ReadDir(u.o.ProcRoot)
	if err != nil {
		return "", fmt.Errorf("list the node's processes: %w", err)
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		dir := filepath.Join(u.o.ProcRoot, p.Name())
		device, err := openNode(dir, nodes)
		if err != nil {
			return "", err
		}
		if device == "" {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		comm := strings.TrimSpace(string(name))
		if !slices.Contains(ignoredProcesses, comm) {
			return fmt.Sprintf("process %s (%s, with %s open)", p.Name(), comm, device), nil
		}
	}
	return "", nil
}

// deviceNodes are the device nodes to look for, as paths below the root.
func (u *Usage) deviceNodes(devices []plan.Device) (nodes []string, err error) {
	snapshot := u.o.Snapshot()
	if len(devices) == 0 {
		plans, _, err := u.o.Held()
		if err != nil {
			return nil, err
		}
		var taken []string
		for _, p := range plans {
			taken = append(taken, p.HeldGPUs()...)
		}
		for _, g := range snapshot.GPUs {
			if !slices.Contains(taken, g.PCIAddress) {
				nodes = append(nodes, fmt.Sprintf("dev/nvidia%d", g.Minor))
			}
		}
		return nodes, nil
	}
	for _, d := range devices {
		switch {
		case d.Admin || d.Partial():
		case d.Kind == gpu.KindMIG:
			node, err := u.o.Capability(d)
			if err != nil {
				return nil, fmt.Errorf("find the device node of %s: %w", d.Name, err)
			}
			if node != "" {
				nodes = append(nodes, "dev/nvidia-caps/"+node)
			}
		default:
			minor := d.Minor
			if g, ok := snapshot.ByAddress(d.PCIAddress); ok {
				minor = g.Minor // The one in the plan may be an earlier boot's.
			}
			nodes = append(nodes, fmt.Sprintf("dev/nvidia%d", minor))
		}
	}
	return nodes, nil
}

// openNode names the device node that a process has open, empty for none. A process that ends meanwhile has none.
func openNode(dir string, nodes []string) (string, error) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("list the open files of a process: %w", err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name())) // Empty for one that is closed meanwhile.
		if slices.ContainsFunc(nodes, func(node string) bool { return strings.HasSuffix(target, "/"+node) }) {
			return filepath.Base(target), nil
		}
	}
	return "", nil
}
