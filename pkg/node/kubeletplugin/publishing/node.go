// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// NodeOptions configures a Node; all fields but AdoptExternal, Sharing, Readiness, Holders and the settings are
// required.
type NodeOptions struct {
	resourceslices.Settings
	Sharing sharing.Source
	// AdoptExternal treats partitions and modes without a record as leftovers.
	AdoptExternal bool
	Modes         Modes
	// DevicePlugins serve GPUs. Until they are known, nothing is published.
	DevicePlugins plan.DevicePlugins
	// Holders are the programs that keep MIG modes from being switched on. Default: none.
	Holders Holders
	// Cordoned are the cordons of the Node. Until they are known, nothing is published.
	Cordoned Cordoned
	// Readiness of the driver for containers. Until it is known, nothing is published. Default: it is ready.
	Readiness *Readiness
	// Records are the prepared claims.
	Records plan.Held
	Reports notify.Reporter
}

// Modes are the recorded MIG modes and partitions without a claim.
type Modes interface {
	// Switched returns the PCI addresses of the GPUs whose MIG mode this driver switched on.
	Switched() (map[string]bool, error)
	// Stuck returns the partitions of ended claims that could not be destroyed, by PCI address.
	Stuck() (map[string][]gpu.Partition, error)
}

// Holders have idle GPUs open.
type Holders interface {
	// Holders returns their names by PCI address.
	Holders() map[string]string
}

// Cordoned follows the Node of the GPUs. Cordoned returns their cordons; false while they are unknown.
type Cordoned interface {
	Cordoned() (wire.Cordons, bool)
	// Reserved returns the addresses of the GPUs that are reserved now.
	Reserved() sets.Set[string]
	// Owner returns the UID of the Node, "" until it was read, and whether the Node was deleted since.
	Owner() (uid types.UID, deleted bool)
}

// Node builds the node's slices from its GPUs. It is safe for concurrent use.
type Node struct {
	// Changed requests a build of the slices.
	Changed notify.Trigger
	name    string
	o       NodeOptions
	// Missing receives the partitions that the newest build missed, Faulty its claims with faulty GPUs.
	Missing *notify.Newest[[]reporting.Missing]
	Faulty  *notify.Newest[[]reporting.Faulty]
	now     func() time.Time

	mu sync.Mutex
	// snapshot is the last scan; nil before the first one.
	snapshot *gpu.Snapshot
	// last is each GPU's last readable state: a held device stays published unchanged, even if its GPU is gone.
	last map[string]gpu.GPU
	// owned are the partitions that a record owned before the last scan or since; switched are the GPUs whose MIG mode
	// the driver had switched. A partition that was released during a scan is thus not external.
	owned, ownedNow       map[gpu.Device]bool
	switched, switchedNow map[string]bool
	// since is the time when a partition was first in a record, by UUID.
	since map[string]time.Time
	// due means that a build is scheduled, to check new partitions.
	due bool
	// split are the groups whose claims were notified, by claim UID and group name.
	split map[string]bool
	// advised has the reported advice, by UUID and name.
	advised map[string]bool
	// unknown means that NVML has not answered for a while.
	unknown bool
	// dependsOnHeld means that a release changes the slices.
	dependsOnHeld bool
	warnings      []resourceslices.Warning
}

// NewNode returns a Node without a scan.
func NewNode(name string, changed notify.Trigger, o NodeOptions) *Node {
	return &Node{
		Changed: changed, name: name, o: o, now: time.Now, last: map[string]gpu.GPU{}, since: map[string]time.Time{},
		Missing: notify.NewNewest[[]reporting.Missing](), Faulty: notify.NewNewest[[]reporting.Faulty](),
	}
}

// Found handles the result of an inventory scan. An error ends the plugin.
func (n *Node) Found(ctx context.Context, s gpu.Snapshot, err error) error {
	logger := klog.FromContext(ctx)
	switch {
	case err == nil:
		logger.Info("GPUs of the node", "driver", s.Driver.Version, "gpus", len(s.GPUs), "problems", len(s.Problems))
	case errors.Is(err, nvml.ErrReplaced):
		return err
	case errors.Is(err, inventory.ErrNoDriver):
		logger.Info("No NVIDIA driver is loaded; GPUs are published after it is", "err", err)
	default:
		n.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.DriverNotReady, Attempt: "read the node's GPUs", Cause: err,
			Remedy: "the plugin retries; check the driver installation on the node (nvidia-smi must work there)",
		})
	}
	if err != nil && !errors.Is(err, inventory.ErrNoDriver) && !errors.Is(err, inventory.ErrHealthUnknown) && s.Driver.Version == "" {
		return nil // NVML has not answered yet, which is not a node without GPUs: the slices of an earlier process stay.
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owned, n.switched = n.ownedNow, n.switchedNow
	n.unknown = errors.Is(err, inventory.ErrHealthUnknown)
	for _, g := range s.GPUs {
		n.last[g.PCIAddress] = g
	}
	n.advise(s)
	n.snapshot = &s
	n.Changed.Fire()
	return nil
}

// retryHeld is the retry interval for unreadable records.
const retryHeld = 10 * time.Second

// build returns the slices; false before the first scan and while the held devices are unknown.
func (n *Node) build(f features) ([]resourceslice.Slice, bool) {
	plans, incomplete, err := n.o.Records.Held()
	attempt := "read the held devices"
	var switched map[string]bool
	var stuck map[string][]gpu.Partition
	if err == nil {
		attempt = "read the switched MIG modes"
		switched, err = n.o.Modes.Switched()
	}
	if err == nil {
		attempt = "read the partitions that could not be destroyed"
		stuck, err = n.o.Modes.Stuck()
	}
	if err != nil {
		n.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: attempt, Cause: err,
			Remedy: "changes are not published until it succeeds; check the node's disk",
		})
		time.AfterFunc(retryHeld, n.Changed.Fire)
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	served, asked := n.o.DevicePlugins.GPUs()
	cordons, known := n.o.Cordoned.Cordoned()
	notReady, checked := "", true
	if n.o.Readiness != nil {
		notReady, checked = n.o.Readiness.Problem()
	}
	if n.snapshot == nil || !asked || !known || !checked {
		return nil, false
	}
	s := *n.snapshot
	s.Problems = slices.Concat(s.Problems, plan.Gone(s, plans))
	held, exclusive := n.held(s, plans)
	n.dependsOnHeld = n.dependsOnHeld || f.onlyForHeld(held) || !f.taints && len(cordons) > 0
	n.own(plans, stuck, switched)
	n.findMissing(s, plans)
	n.findSplitGroups(s, plans)
	n.findFaulty(s, plans)
	conditions := map[string]resourceslices.Condition{}
	for _, g := range s.GPUs {
		if n.unknown {
			conditions[g.PCIAddress] = resourceslices.Condition{
				State: resourceslices.Unknown, Message: inventory.ErrHealthUnknown.Error(),
			}
		} else if g.Silent {
			conditions[g.PCIAddress] = resourceslices.Condition{
				State: resourceslices.Unknown, Message: gpu.SilentText + ". Run nvidia-smi on the node, and reset the GPU or reboot the node",
			}
		} else if notReady != "" {
			conditions[g.PCIAddress] = resourceslices.Condition{State: resourceslices.NotReady, Message: notReady}
		} else if incomplete && !exclusive[g.PCIAddress] {
			conditions[g.PCIAddress] = resourceslices.Condition{
				State:   resourceslices.Withheld,
				Message: "a claim with an unreadable record may hold it; it is available again when that claim is looked up or released",
			}
		}
		if len(g.Faults) == 0 {
			continue
		}
		worst := g.Faults[0]
		state, _ := health.Lookup(worst.State)
		if _, unavailable := conditions[g.PCIAddress]; !unavailable || !state.GroupsOnly {
			conditions[g.PCIAddress] = resourceslices.Condition{
				State: resourceslices.State(worst.State), Message: worst.Cause + "; " + state.RemedyFor(g.PCIAddress),
			}
		}
	}
	for address, resource := range served {
		conditions[address] = resourceslices.Condition{
			State:   resourceslices.DevicePlugin,
			Message: "a device plugin serves it as " + resource + ", or did minutes ago. Remove the device plugin from the node to publish the GPU",
		}
	}
	var holders map[string]string
	if n.o.Holders != nil {
		holders = n.o.Holders.Holders()
	}
	pool, warnings := resourceslices.Build(s, conditions, resourceslices.Options{
		Node: n.name, Taints: f.taints, NoEffectTaints: f.noEffectTaints, SharedDevices: f.sharedDevices, HeldShares: f.heldShares, Counters: f.counters, Held: held,
		Switched: n.modes(s), External: n.external(s, stuck), Stuck: stuck, Holders: holders, Cordons: cordons, Reserved: n.o.Cordoned.Reserved(), Settings: n.o.Settings, Sharing: n.o.Sharing,
	})
	// Found reports once for the node that NVML does not answer, and Readiness that the driver is not ready.
	n.notify(slices.DeleteFunc(warnings, func(w resourceslices.Warning) bool {
		return n.unknown && w.State == resourceslices.Unknown || w.State == resourceslices.NotReady
	}))
	out := make([]resourceslice.Slice, len(pool.Slices))
	for i, s := range pool.Slices {
		out[i] = resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters}
	}
	return out, true
}

func (n *Node) owner() (uid types.UID, deleted bool) { return n.o.Cordoned.Owner() }

// held returns the held devices, and the GPUs that a plan holds whole. The caller holds n.mu.
func (n *Node) held(s gpu.Snapshot, plans []plan.Plan) (held []resourceslices.Held, exclusive map[string]bool) {
	exclusive = map[string]bool{}
	n.dependsOnHeld = false
	for _, p := range plans {
		for _, address := range p.HeldGPUs() {
			exclusive[address] = true
		}
		for _, d := range p.Devices {
			g, ok := n.last[d.PCIAddress]
			if !ok {
				g = gpu.GPU{PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor}
			}
			if _, ok := s.ByAddress(d.PCIAddress); !ok {
				n.dependsOnHeld = true
			}
			device := gpu.Device{Kind: d.Kind, PCIAddress: d.PCIAddress, Profile: d.Partition.Profile, Start: d.Partition.Start}
			if d.Kind == gpu.KindGroup {
				device, _ = gpu.ParseName(d.Name) // The plan has its GPUs. missing reports an invalid name.
			}
			var shared v1beta1.Strategy
			if d.Partial() && !d.Admin {
				shared = d.Sharing.Strategy
			}
			n.dependsOnHeld = n.dependsOnHeld || (!d.Admin || d.Kind == gpu.KindMonitor) && n.unlikeSettings(d)
			held = append(held, resourceslices.Held{
				Shared: shared, Share: d.ShareID != "" && !d.Admin, Device: device, Size: d.Partition.Size, MemoryBytes: d.Partition.MemoryBytes, External: d.Partition.External, GPU: g,
			})
		}
	}
	return held, exclusive
}

// unlikeSettings reports whether the settings would publish a held device otherwise, or not at all, without its claim.
func (n *Node) unlikeSettings(d plan.Device) bool {
	g := n.last[d.PCIAddress]
	if d.Kind == gpu.KindMIG && n.o.NoPartitions {
		return true
	}
	if n.o.Sharing == nil {
		return false
	}
	if d.Kind == gpu.KindMIG && n.o.Sharing.Placements(g, d.Partition.Profile) != sharing.AllPlacements ||
		d.Kind == gpu.KindGroup && n.o.Sharing.Groups(g) != sharing.AllPlacements ||
		d.Kind == gpu.KindMonitor && (n.o.NoMonitors || n.o.Sharing.Monitors(g) != sharing.AllPlacements) {
		return true
	}
	if d.ShareID == "" {
		return false
	}
	o, ok := n.o.Sharing.Offer(g, d.Partition.Profile, "")
	return !ok || d.Partial() && o.Strategy != d.Sharing.Strategy
}

// notify reports devices that are newly unavailable, and logs those that are available again. The caller holds n.mu.
func (n *Node) notify(warnings []resourceslices.Warning) {
	fresh := slices.DeleteFunc(slices.Clone(warnings), func(w resourceslices.Warning) bool { return slices.Contains(n.warnings, w) })
	for _, w := range perGPU(fresh) {
		reason := claimerror.DeviceNotReady
		if w.State == resourceslices.Lost {
			reason = claimerror.DeviceLost
		}
		n.o.Reports.Report(&claimerror.Error{
			Reason: reason, Attempt: "publish", Device: w.Device, Cause: errors.New(w.Message),
			Remedy: "other GPUs of the node are not affected",
		})
	}
	for _, w := range n.warnings {
		if !slices.Contains(warnings, w) {
			klog.Background().Info("Device available again or released", "device", w.Device, "state", w.State, "was", w.Message)
		}
	}
	n.warnings = warnings
}

// perGPU joins the warnings about a GPU and its partitions that have the same state. A board of eight GPUs can have 56
// partitions, and client-go drops Events about an object beyond 25. The GPU's own warning stands for all; without one,
// the first does.
func perGPU(warnings []resourceslices.Warning) (out []resourceslices.Warning) {
	type key struct {
		address string
		state   resourceslices.State
	}
	first, partitions := map[key]int{}, map[key][]string{}
	for _, w := range warnings {
		d, err := gpu.ParseName(w.Device)
		if err != nil || w.State == "" || d.Kind == gpu.KindGroup {
			out = append(out, w)
			continue
		}
		k := key{d.PCIAddress, w.State}
		if d.Kind == gpu.KindMIG {
			partitions[k] = append(partitions[k], w.Device)
		}
		switch at, seen := first[k]; {
		case !seen:
			first[k] = len(out)
			out = append(out, w)
		case d.Kind == gpu.KindGPU:
			out[at] = w
		}
	}
	for k, at := range first {
		others := slices.DeleteFunc(slices.Sorted(slices.Values(partitions[k])), func(name string) bool { return name == out[at].Device })
		if len(others) > 0 {
			out[at].Message += " (also partitions that claims have: " + strings.Join(others, ", ") + ")"
		}
	}
	return out
}

// Released rebuilds the slices, if they depend on held devices, after a claim released its devices.
func (n *Node) Released() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dependsOnHeld || len(n.warnings) > 0 {
		n.Changed.Fire()
	}
}
