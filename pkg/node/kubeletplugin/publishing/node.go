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

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
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
	owned, ownedNow       map[place]bool
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
	if err != nil && !errors.Is(err, inventory.ErrNoDriver) && !errors.Is(err, inventory.ErrHealthUnknown) &&
		s.Driver.Version == "" {
		// NVML has not answered yet, which is not a node without GPUs: the slices of an earlier process stay.
		return nil
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

// build returns the slices; false before the first scan and while an answer that they need is missing.
func (n *Node) build(f features) ([]resourceslice.Slice, bool) {
	in, ok := n.read()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot == nil || !ok {
		return nil, false
	}
	in.scan, in.last, in.unknown = *n.snapshot, n.last, n.unknown
	in.scan.Problems = slices.Concat(in.scan.Problems, plan.Gone(in.scan, in.plans))
	n.own(in)
	in.owned, in.Switched = n.owned, n.switched
	n.findMissing(in)
	n.findSplitGroups(in)
	n.Faulty.Put(in.findFaulty())
	out, warnings, dependsOnHeld := in.build(f)
	n.dependsOnHeld = dependsOnHeld
	n.notify(warnings)
	return out, true
}

// read asks the records, the kubelet, the Node and the driver; false while one of them has no answer. It runs without
// the lock, since an answer that changes requests another build.
func (n *Node) read() (in inputs, known bool) {
	in.Node, in.Settings, in.Sharing, in.adoptExternal = n.name, n.o.Settings, n.o.Sharing, n.o.AdoptExternal
	attempt := "read the held devices"
	var err error
	in.plans, in.incomplete, err = n.o.Records.Held()
	if err == nil {
		attempt = "read the switched MIG modes"
		in.Switched, err = n.o.Modes.Switched()
	}
	if err == nil {
		attempt = "read the partitions that could not be destroyed"
		in.Stuck, err = n.o.Modes.Stuck()
	}
	if err != nil {
		n.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: attempt, Cause: err,
			Remedy: "changes are not published until it succeeds; check the node's disk",
		})
		time.AfterFunc(retryHeld, n.Changed.Fire)
		return in, false
	}
	var served, cordoned bool
	in.served, served = n.o.DevicePlugins.GPUs()
	in.Cordons, cordoned = n.o.Cordoned.Cordoned()
	in.Reserved = n.o.Cordoned.Reserved()
	checked := true
	if n.o.Readiness != nil {
		in.notReady, checked = n.o.Readiness.Problem()
	}
	if n.o.Holders != nil {
		in.Holders = n.o.Holders.Holders()
	}
	return in, served && cordoned && checked
}

func (n *Node) owner() (uid types.UID, deleted bool) { return n.o.Cordoned.Owner() }

// notify reports devices that are newly unavailable, and logs those that are available again. The caller holds n.mu.
func (n *Node) notify(warnings []resourceslices.Warning) {
	fresh := slices.DeleteFunc(slices.Clone(warnings), func(w resourceslices.Warning) bool {
		return slices.Contains(n.warnings, w)
	})
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
			klog.Background().Info("Device available again or released",
				"device", w.Device, "state", w.State, "was", w.Message)
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
		others := slices.DeleteFunc(slices.Sorted(slices.Values(partitions[k])), func(name string) bool {
			return name == out[at].Device
		})
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
