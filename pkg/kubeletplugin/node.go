// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/pkg/sharing"
)

// holder knows what prepared claims hold; the engine is the one.
type holder interface {
	Held() (plans []plan.Plan, blind bool, err error)
}

// node is what is known of the node's GPUs, and turns it into slices.
type node struct {
	name    string
	holder  holder
	mig     MIG
	offer   func(g gpu.GPU, profile string) (sharing.Offer, bool)
	report  func(error)
	changed func() // pokes the publisher
	looked  chan struct{}

	mu       sync.Mutex
	seen     bool
	snapshot gpu.Snapshot
	// last is each GPU as it was last read: a device that is held stays published as it was, though its GPU is gone.
	last map[string]gpu.GPU
	// owned are the partitions that a claim's record owned before the last look or since, switched the GPUs whose MIG mode
	// the driver had switched. A look may show a partition whose claim was released meanwhile: it is not foreign for that.
	owned, ownedNow       map[gpu.Device]bool
	switched, switchedNow map[string]bool
	// since is when a partition was first seen in a record, by UUID. suspect hears of those that looks do not show.
	since   map[string]time.Time
	due     bool // a build is coming that looks for them
	now     func() time.Time
	suspect func([]suspicion)
	// parted are the groups of claims that were told of, by claim UID and name.
	parted map[string]bool
	// served is what device plugins of the node serve; asking says that nobody has said yet.
	served Served
	asking bool
	// leaning says that what is published depends on what is held, so that a release changes it.
	leaning  bool
	warnings []resourceslices.Warning
}

func newNode(name string, report func(error)) *node {
	return &node{
		name: name, report: report, looked: make(chan struct{}), last: map[string]gpu.GPU{},
		suspect: func([]suspicion) {}, now: time.Now,
	}
}

// found takes what inventory saw. The error it returns ends the plugin.
func (n *node) found(ctx context.Context, s gpu.Snapshot, err error) error {
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
	n.snapshot = s
	n.owned, n.switched = n.ownedNow, n.switchedNow
	for i, g := range s.GPUs {
		// Its links are what they were: the group that it is in must not change with each partition.
		if last := n.last[g.PCIAddress]; g.MIG.Enabled && last.UUID == g.UUID {
			g.Interconnect = last.Interconnect
			s.GPUs[i] = g
		} else if g.MIG.Enabled && n.mig.RecordedInterconnect != nil {
			g.Interconnect = n.mig.RecordedInterconnect(g)
			s.GPUs[i] = g
		}
		n.last[g.PCIAddress] = g
	}
	first := !n.seen
	n.seen = true
	n.mu.Unlock()
	if first {
		close(n.looked)
	}
	n.changed()
	return nil
}

// again pokes the publisher, if there is something to publish yet.
func (n *node) again() {
	n.mu.Lock()
	seen := n.seen
	n.mu.Unlock()
	if seen {
		n.changed()
	}
}

// current is the newest look at the node.
func (n *node) current() gpu.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.snapshot
}

// heldAgain is how soon records that could not be read are tried again.
const heldAgain = 10 * time.Second

// build makes the slices. Without having looked, or without knowing what is held, there are none to be made.
func (n *node) build(f features) ([]resourceslice.Slice, bool) {
	plans, blind, err := n.holder.Held()
	if err != nil {
		n.report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: "read which devices are held", Cause: err,
			Remedy: "nothing new is published until it succeeds; look at the node's disk",
		})
		time.AfterFunc(heldAgain, n.changed)
		return nil, false
	}
	switched, err := n.mig.switchedModes()
	if err != nil {
		n.report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: "read whose MIG mode was switched", Cause: err,
			Remedy: "nothing new is published until it succeeds; look at the node's disk",
		})
		time.AfterFunc(heldAgain, n.changed)
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen || n.asking {
		return nil, false
	}
	held, known := n.held(plans)
	n.own(plans, switched)
	n.suspect(n.unseen(plans))
	n.partedGroups(plans)
	conditions := map[string]resourceslices.Condition{}
	if blind {
		for _, g := range n.snapshot.GPUs {
			if !known[g.PCIAddress] {
				conditions[g.PCIAddress] = resourceslices.Condition{
					State: resourceslices.Withheld, Message: "a claim whose record is unreadable may hold it; it comes back once that claim is looked up or released",
				}
			}
		}
	}
	for address, resource := range n.served.gpus(n.snapshot) {
		conditions[address] = resourceslices.Condition{
			State: resourceslices.DevicePlugin, Message: "a device plugin serves it as " + resource + "; remove the device plugin from the node, and it is published",
		}
	}
	pool, warnings := resourceslices.Build(n.snapshot, conditions, resourceslices.Options{
		Node: n.name, Taints: f.taints, SharedDevices: f.sharedDevices, Counters: f.counters, Held: held,
		AllowReset: n.mig.AllowReset, Switched: n.modes(), Foreign: n.foreign(), Offer: n.offer,
	})
	n.tell(warnings)
	return slicesOf(pool.Slices), true
}

// held describes the held devices, and says which GPUs some plan takes for itself. n.mu is held.
func (n *node) held(plans []plan.Plan) (held []resourceslices.Held, known map[string]bool) {
	known = map[string]bool{}
	n.leaning = false
	for _, p := range plans {
		for _, address := range p.Exclusive() {
			known[address] = true
		}
		for _, d := range p.Devices {
			g, ok := n.last[d.PCIAddress]
			if !ok {
				g = gpu.GPU{PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor}
			}
			if _, ok := n.snapshot.ByAddress(d.PCIAddress); !ok {
				n.leaning = true
			}
			device := gpu.Device{Kind: d.Kind, PCIAddress: d.PCIAddress, Profile: d.Partition.Profile, Start: d.Partition.Start}
			if d.Kind == gpu.KindGroup {
				device, _ = gpu.ParseName(d.Name) // Which GPUs it has the plan says; what does not parse is reported where it is published.
			}
			held = append(held, resourceslices.Held{
				Device: device,
				Size:   d.Partition.Size, MemoryBytes: d.Partition.MemoryBytes, Foreign: d.Partition.Foreign, GPU: g,
			})
		}
	}
	return held, known
}

// tell reports what is not published, or no more. n.mu is held.
func (n *node) tell(warnings []resourceslices.Warning) {
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

// released is called after a claim let go of its devices.
func (n *node) released() {
	n.mu.Lock()
	leaning := n.leaning || len(n.warnings) > 0
	n.mu.Unlock()
	if leaning {
		n.changed()
	}
}

// waitLooked waits for the first look at the node.
func (n *node) waitLooked(ctx context.Context, limit time.Duration) error {
	select {
	case <-n.looked:
		return nil
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-n.looked:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("NVML has not answered for %s", limit)
	}
}
