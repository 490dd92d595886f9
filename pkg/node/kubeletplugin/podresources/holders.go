// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/gpu"
)

// Holders finds the processes that have an idle GPU open, so that its MIG mode cannot be switched on, such as DCGM.
type Holders struct {
	usage *Usage
	o     HoldersOptions

	mu sync.Mutex
	// seen are the holders of the last check, now those that the check before saw too, by PCI address.
	seen, now map[string]string
}

// HoldersOptions configures a Holders; AllowReset is optional.
type HoldersOptions struct {
	// SysRoot is the machine's /sys.
	SysRoot string
	// AllowReset allows switches that need a reset of the GPU.
	AllowReset bool
	// Changed is fired after the holders changed.
	Changed notify.Trigger
}

func NewHolders(usage *Usage, o HoldersOptions) *Holders { return &Holders{usage: usage, o: o} }

// holdersInterval is the interval of checks. Two checks must agree, because nvidia-smi has GPUs open for a moment.
const holdersInterval = 30 * time.Second

// Run checks until the context ends.
func (h *Holders) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := h.check(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Finding the processes that have idle GPUs open failed; trying again")
		}
	}, holdersInterval)
}

// Holders returns the names of the holders, by the GPU's PCI address: a process, or DRM.
func (h *Holders) Holders() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// DRM is the holder of a GPU that the kernel's module for displays uses: it blocks resets
// (https://github.com/NVIDIA/mig-parted/issues/181).
const DRM = "nvidia_drm with modeset=1"

// driverProcesses are processes that keep no GPU from a switch of its mode: those of the driver, and this plugin's,
// which closes its sessions before.
var driverProcesses = append([]string{"dra-kubelet-plu"}, resetIgnored...)

func (h *Holders) check(ctx context.Context) error {
	idle, err := h.idle()
	if err != nil {
		return err
	}
	found := map[string]string{}
	if modeset, err := os.ReadFile(filepath.Join(h.o.SysRoot, "module/nvidia_drm/parameters/modeset")); err == nil &&
		strings.TrimSpace(string(modeset)) == "Y" {
		for _, g := range idle {
			if !g.MIG.Switchable {
				found[g.PCIAddress] = DRM
			}
		}
	}
	if len(idle) > 0 {
		own, _ := os.Readlink(filepath.Join(h.usage.o.ProcRoot, "self"))
		_, err = h.usage.search(ctx, gpuNode.MatchString, func(pid, name string, open []string) bool {
			for _, g := range idle {
				if found[g.PCIAddress] == "" && pid != own && !slices.Contains(driverProcesses, name) &&
					slices.ContainsFunc(open, func(file string) bool { return isNode(file)(nodeOf(g.Minor)) }) {
					found[g.PCIAddress] = name
				}
			}
			return true // Look at all processes.
		})
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := map[string]string{}
	for address, name := range found {
		if h.seen[address] == name {
			now[address] = name
		}
	}
	changed := !maps.Equal(h.now, now)
	if h.seen, h.now = found, now; changed {
		h.o.Changed.Fire()
	}
	return nil
}

// idle returns the GPUs of no claim whose MIG mode would be switched on for a partition.
func (h *Holders) idle() (out []gpu.GPU, err error) {
	plans, _, err := h.usage.o.Records.Held()
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, p := range plans {
		for _, d := range p.Devices {
			held[d.PCIAddress] = held[d.PCIAddress] || !d.Admin
		}
	}
	for _, g := range h.usage.o.Scans.Snapshot().GPUs {
		if m := g.MIG; m.Capable && !m.Enabled && (m.Switchable || h.o.AllowReset) && !held[g.PCIAddress] {
			out = append(out, g)
		}
	}
	return out, nil
}
