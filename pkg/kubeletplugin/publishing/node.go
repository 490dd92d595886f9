// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/pkg/sharing"
)

// records knows which devices prepared claims hold; the engine implements it.
type records interface {
	Held() (plans []plan.Plan, incomplete bool, err error)
}

// NodeOptions configures a Node. Nil functions: no partitions are made here, no shares offered, no device plugins asked.
type NodeOptions struct {
	// AllowReset has MIG modes switched where that resets the GPU.
	AllowReset bool
	// AdoptForeign takes partitions and modes that no claim's record owns for leftovers.
	AdoptForeign bool
	// Switched gives the GPUs, by PCI address, whose MIG mode this driver switched on.
	Switched func() (map[string]bool, error)
	// RecordedInterconnect is how a GPU in MIG mode was connected before, as recorded by an earlier run of the plugin.
	RecordedInterconnect func(gpu.GPU) gpu.Interconnect
	// Offer gives the shares that a GPU, or a MIG profile of it, is offered in.
	Offer func(g gpu.GPU, profile string) (sharing.Offer, bool)
	// DevicePlugins gives the GPUs that device plugins serve, by PCI address, each with its resource's name. While it is
	// false, nothing is published.
	DevicePlugins func() (map[string]string, bool)
}

// Node builds the node's slices from its GPUs. Its methods may be called at once.
type Node struct {
	name    string
	scans   *inventory.Latest
	records records
	report  func(error)
	changed Trigger
	o       NodeOptions
	missing chan []reporting.Missing
	now     func() time.Time

	mu sync.Mutex
	// last is each GPU as it was last read: a device that is held stays published as it was, though its GPU is gone.
	last map[string]gpu.GPU
	// owned are the partitions that a claim's record owned before the last scan or since, switched the GPUs whose MIG mode
	// the driver had switched. A scan may show a partition whose claim was released meanwhile: it is not foreign for that.
	owned, ownedNow       map[gpu.Device]bool
	switched, switchedNow map[string]bool
	// since is when a partition was first seen in a record, by UUID.
	since map[string]time.Time
	// due says that a build is scheduled that looks for new partitions.
	due bool
	// split are the groups whose claims were notified, by claim UID and name.
	split map[string]bool
	// dependsOnHeld says that the slices depend on the held devices, so that a release changes them.
	dependsOnHeld bool
	warnings      []resourceslices.Warning
}

// NewNode makes a Node that has not been scanned. It stores Snapshots in scans, and sends errors that no caller receives
// to report, which must not block.
func NewNode(name string, scans *inventory.Latest, records records, changed Trigger, report func(error), o NodeOptions) *Node {
	return &Node{
		name: name, scans: scans, records: records, report: report, changed: changed, o: o,
		missing: make(chan []reporting.Missing, 1), now: time.Now, last: map[string]gpu.GPU{},
		since: map[string]time.Time{},
	}
}

// Missing carries the partitions that the newest build missed, for reporting.LostPartitions.
func (n *Node) Missing() <-chan []reporting.Missing { return n.missing }

// Scanned is closed with the first Found.
func (n *Node) Scanned() <-chan struct{} { return n.scans.Scanned() }

// Found takes the result of a scan of inventory. The error it returns ends the plugin.
func (n *Node) Found(ctx context.Context, s gpu.Snapshot, err error) error {
	logger := klog.FromContext(ctx)
	switch {
	case err == nil:
		logger.Info("GPUs of the node", "driver", s.Driver.Version, "gpus", len(s.GPUs), "problems", len(s.Problems))
	case errors.Is(err, nvml.ErrReplaced):
		return err
	case errors.Is(err, inventory.ErrNoDriver):
		logger.Info("No NVIDIA driver is loaded; its GPUs are published once it is", "err", err)
	default:
		n.report(&claimerror.Error{
			Reason: claimerror.DriverNotReady, Attempt: "read the node's GPUs", Cause: err,
			Remedy: "it is retried; check the driver installation on the node (nvidia-smi must work there)",
		})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owned, n.switched = n.ownedNow, n.switchedNow
	// The inventory compares its next scan with these GPUs.
	s.GPUs = slices.Clone(s.GPUs)
	for i, g := range s.GPUs {
		// Its links are those of the last scan: its group must not change with each partition.
		if last := n.last[g.PCIAddress]; g.MIG.Enabled && last.UUID == g.UUID {
			g.Interconnect = last.Interconnect
		} else if g.MIG.Enabled && n.o.RecordedInterconnect != nil {
			g.Interconnect = n.o.RecordedInterconnect(g)
		}
		s.GPUs[i], n.last[g.PCIAddress] = g, g
	}
	n.scans.Set(s)
	n.changed.Fire()
	return nil
}

// retryHeld is how soon records that could not be read are tried again.
const retryHeld = 10 * time.Second

// build makes the slices. It is false before the first scan, and while the held devices are not known.
func (n *Node) build(f features) ([]resourceslice.Slice, bool) {
	plans, incomplete, err := n.records.Held()
	attempt := "read which devices are held"
	var switched map[string]bool
	if err == nil && n.o.Switched != nil {
		attempt = "read whose MIG mode was switched"
		switched, err = n.o.Switched()
	}
	if err != nil {
		n.report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: attempt, Cause: err,
			Remedy: "nothing new is published until it succeeds; look at the node's disk",
		})
		time.AfterFunc(retryHeld, n.changed.Fire)
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.Scanned():
	default:
		return nil, false
	}
	var served map[string]string
	if n.o.DevicePlugins != nil {
		asked := false
		if served, asked = n.o.DevicePlugins(); !asked {
			return nil, false
		}
	}
	s := n.scans.Snapshot()
	held, exclusive := n.held(s, plans)
	n.own(plans, switched)
	n.findMissing(s, plans)
	n.findSplitGroups(s, plans)
	conditions := map[string]resourceslices.Condition{}
	if incomplete {
		for _, g := range s.GPUs {
			if !exclusive[g.PCIAddress] {
				conditions[g.PCIAddress] = resourceslices.Condition{
					State:   resourceslices.Withheld,
					Message: "a claim whose record is unreadable may hold it; it comes back once that claim is looked up or released",
				}
			}
		}
	}
	for address, resource := range served {
		conditions[address] = resourceslices.Condition{
			State:   resourceslices.DevicePlugin,
			Message: "a device plugin serves it as " + resource + "; remove the device plugin from the node, and it is published",
		}
	}
	pool, warnings := resourceslices.Build(s, conditions, resourceslices.Options{
		Node: n.name, Taints: f.taints, SharedDevices: f.sharedDevices, Counters: f.counters, Held: held,
		AllowReset: n.o.AllowReset, Switched: n.modes(s), Foreign: n.foreign(s), Offer: n.o.Offer,
	})
	n.notify(warnings)
	out := make([]resourceslice.Slice, len(pool.Slices))
	for i, s := range pool.Slices {
		out[i] = resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters}
	}
	return out, true
}

// held describes the held devices, and the GPUs that some plan has for itself. n.mu is held.
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
				device, _ = gpu.ParseName(d.Name) // The plan has its GPUs; a name that does not parse is reported where it is published.
			}
			held = append(held, resourceslices.Held{
				Device: device, Size: d.Partition.Size, MemoryBytes: d.Partition.MemoryBytes, Foreign: d.Partition.Foreign, GPU: g,
			})
		}
	}
	return held, exclusive
}

// notify reports the devices that are not published any more, and logs those that are again. n.mu is held.
func (n *Node) notify(warnings []resourceslices.Warning) {
	for _, w := range warnings {
		if slices.Contains(n.warnings, w) {
			continue
		}
		reason := claimerror.DeviceNotReady
		if w.State == resourceslices.Lost {
			reason = claimerror.DeviceLost
		}
		n.report(&claimerror.Error{
			Reason: reason, Attempt: "publish", Device: w.Device, Cause: errors.New(w.Message),
			Remedy: "other GPUs of the node are not affected",
		})
	}
	for _, w := range n.warnings {
		if !slices.Contains(warnings, w) {
			klog.Background().Info("Published again or released", "device", w.Device, "state", w.State, "was", w.Message)
		}
	}
	n.warnings = warnings
}

// Released is called after a claim released its devices.
func (n *Node) Released() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dependsOnHeld || len(n.warnings) > 0 {
		n.changed.Fire()
	}
}
