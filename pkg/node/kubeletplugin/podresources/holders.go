// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"hash/crc64"
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
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// Holders finds the processes that have an idle GPU open, so that its MIG mode cannot be switched on, such as DCGM. It
// searches for those of GPUs whose partitions are published.
type Holders struct {
	usage *Usage
	o     HoldersOptions

	mu sync.Mutex
	// seen are the holders of the last check, "" for GPUs without; now those that count, by PCI address.
	seen, now map[string]string
	// processes have been read, by their directories. They are forgotten at forget.
	processes map[string]checked
	forget    time.Time
}

// checked holds what the last check read of a process.
type checked struct {
	// state is a hash of the stat file, which differs after the process ran for a clock tick or got memory.
	state uint64
	// It has these device nodes of GPUs open.
	gpus []string
}

// HoldersOptions configures a Holders; AllowReset is optional.
type HoldersOptions struct {
	// Records has the claims with GPUs that are not idle.
	Records plan.Held
	// Sharing says for which GPUs partitions are published.
	Sharing sharing.Source
	// SysRoot is the machine's /sys.
	SysRoot string
	// AllowReset allows switches that need a reset of the GPU.
	AllowReset bool
	// Changed is fired after the holders changed.
	Changed notify.Trigger
}

func NewHolders(usage *Usage, o HoldersOptions) *Holders {
	return &Holders{usage: usage, o: o, seen: map[string]string{}}
}

const (
	// holdersInterval is the interval of checks. Two checks must agree, because nvidia-smi has GPUs open for a moment.
	holdersInterval = 30 * time.Second
	// forgetAfter is the time after which a process that seems not to have run is read again.
	forgetAfter = 10 * time.Minute
)

// Run checks until the context ends.
func (h *Holders) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := h.check(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Finding the processes that have idle GPUs open failed; trying again")
		}
	}, holdersInterval)
}

// Holders returns the names of the holders, by the GPU's PCI address: a process, or DRM. It checks a GPU whose
// partitions are to be published for the first time.
func (h *Holders) Holders() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	idle, _ := h.idle() // Run reports the error.
	if slices.ContainsFunc(idle, func(g gpu.GPU) bool {
		_, known := h.seen[g.PCIAddress]
		return !known
	}) {
		_ = h.check(context.Background())
	}
	return h.now
}

// DRM is the holder of a GPU that the kernel's module for displays uses: it blocks resets
// (https://github.com/NVIDIA/mig-parted/issues/181).
const DRM = "nvidia_drm with modeset=1"

// driverProcesses are processes that keep no GPU from a switch of its mode: those of the driver, and this plugin's,
// which closes its sessions before.
var driverProcesses = append([]string{"dra-kubelet-plu"}, resetIgnored...)

// check searches for the holders. One counts if the check before saw it too, or did not look at the GPU. The caller
// holds h.mu.
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
		_, err = h.usage.search(ctx, h.changed(), gpuNode.MatchString, func(pid, name string, open []string) bool {
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
	now := map[string]string{}
	for _, g := range idle {
		name := found[g.PCIAddress]
		if last, again := h.seen[g.PCIAddress]; name != "" && (!again || last == name) {
			now[g.PCIAddress] = name
		}
		h.seen[g.PCIAddress] = name
	}
	if !maps.Equal(h.now, now) {
		h.o.Changed.Fire()
	}
	h.now = now
	return nil
}

// changed returns a function that lists the GPUs that a process has open, and reads the files of processes that changed
// since the last check. A node has tens of thousands of open files.
func (h *Holders) changed() func(dir string) ([]string, error) {
	last := h.processes
	if now := time.Now(); now.After(h.forget) {
		last, h.forget = nil, now.Add(forgetAfter)
	}
	h.processes = map[string]checked{}
	return func(dir string) ([]string, error) {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		state := crc64.Checksum(stat, states)
		p, known := last[dir]
		if err == nil && known && p.state == state {
			h.processes[dir] = p
			return p.gpus, nil
		}
		open, openErr := openFiles(dir)
		open = slices.DeleteFunc(open, func(file string) bool { return !gpuNode.MatchString(file) })
		if err == nil && openErr == nil {
			h.processes[dir] = checked{state, open}
		}
		return open, openErr
	}
}

var states = crc64.MakeTable(crc64.ECMA)

// idle returns the GPUs of no claim whose MIG mode would be switched on for a partition that is published.
func (h *Holders) idle() (out []gpu.GPU, err error) {
	plans, _, err := h.o.Records.Held()
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
		published := slices.ContainsFunc(g.MIG.Profiles, func(p gpu.Profile) bool {
			placements := h.o.Sharing.Placements(g, p.Name)
			return placements != sharing.LaterPlacements && placements != sharing.NoPlacement
		})
		m := g.MIG
		if published && !m.Enabled && (m.Switchable || h.o.AllowReset) && !held[g.PCIAddress] {
			out = append(out, g)
		}
	}
	return out, nil
}
