// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// inputs are all that the slices of a node depend on, apart from the features of the API server. Node reads them, and
// build only computes.
type inputs struct {
	// Options has the settings and the answers of other parts of the plugin. build adds the rest.
	resourceslices.Options
	scan gpu.Snapshot
	// last is each GPU's last readable state, by PCI address.
	last map[string]gpu.GPU
	// unknown means that NVML has not answered for a while.
	unknown bool
	// plans are the prepared claims. incomplete means that a record is unreadable, so that more GPUs may be held.
	plans      []plan.Plan
	incomplete bool
	// served has the resources of device plugins, by the PCI address of their GPUs.
	served map[string]string
	// notReady is why no claim can be prepared, or "".
	notReady string
	// owned are the partitions of records. Without adoptExternal, others are external.
	owned         map[place]bool
	adoptExternal bool
}

// build returns the slices, and warnings about unavailable devices. dependsOnHeld means that a release changes them.
func (in inputs) build(f features) (out []resourceslice.Slice, warnings []resourceslices.Warning, dependsOnHeld bool) {
	o := in.Options
	o.Taints, o.NoEffectTaints, o.SharedDevices = f.taints, f.noEffectTaints, f.sharedDevices
	o.HeldShares, o.Counters = f.heldShares, f.counters
	o.Held, dependsOnHeld = in.held()
	o.Switched, o.External = in.modes(), in.external()
	pool, warnings := resourceslices.Build(in.scan, in.conditions(), o)
	// Found reports once for the node that NVML does not answer, and Readiness that the driver is not ready.
	warnings = slices.DeleteFunc(warnings, func(w resourceslices.Warning) bool {
		return in.unknown && w.State == resourceslices.Unknown || w.State == resourceslices.NotReady
	})
	for _, s := range pool.Slices {
		out = append(out, resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return out, warnings, dependsOnHeld || f.onlyForHeld(o.Held) || !f.taints && len(in.Cordons) > 0
}

// held returns the held devices, and whether they are published otherwise without their claims.
func (in inputs) held() (held []resourceslices.Held, dependsOnHeld bool) {
	for _, p := range in.plans {
		for _, d := range p.Devices {
			g, ok := in.last[d.PCIAddress]
			if !ok {
				g = gpu.GPU{PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor}
			}
			_, found := in.scan.ByAddress(d.PCIAddress)
			published := !d.Admin || d.Kind == gpu.KindMonitor
			dependsOnHeld = dependsOnHeld || !found || published && unlikeSettings(in.Settings, in.Sharing, g, d)
			device := gpu.Device{Kind: d.Kind, PCIAddress: d.PCIAddress, Profile: d.Partition.Profile,
				Start: d.Partition.Start}
			if d.Kind == gpu.KindGroup {
				device, _ = gpu.ParseName(d.Name) // The plan has its GPUs. Build reports an invalid name.
			}
			var shared v1beta1.Strategy
			if d.Partial() && !d.Admin {
				shared = d.Sharing.Strategy
			}
			held = append(held, resourceslices.Held{
				Shared:      shared,
				Share:       d.ShareID != "" && !d.Admin,
				Device:      device,
				Size:        d.Partition.Size,
				MemoryBytes: d.Partition.MemoryBytes,
				External:    d.Partition.External,
				GPU:         g,
			})
		}
	}
	return held, dependsOnHeld
}

// unlikeSettings reports whether the settings would publish a held device of g otherwise, or not at all, without its
// claim.
func unlikeSettings(s resourceslices.Settings, source sharing.Source, g gpu.GPU, d plan.Device) bool {
	if d.Kind == gpu.KindMIG && s.NoPartitions {
		return true
	}
	if source == nil {
		return false
	}
	if d.Kind == gpu.KindMIG && source.Placements(g, d.Partition.Profile) != sharing.AllPlacements ||
		d.Kind == gpu.KindGroup && source.Groups(g) != sharing.AllPlacements ||
		d.Kind == gpu.KindMonitor && (s.NoMonitors || source.Monitors(g) != sharing.AllPlacements) {
		return true
	}
	if d.ShareID == "" {
		return false
	}
	o, ok := source.Offer(g, d.Partition.Profile, "")
	return !ok || d.Partial() && o.Strategy != d.Sharing.Strategy
}

// conditions returns why GPUs are unavailable, by PCI address.
func (in inputs) conditions() map[string]resourceslices.Condition {
	whole := sets.Set[string]{}
	for _, p := range in.plans {
		whole.Insert(p.HeldGPUs()...)
	}
	out := map[string]resourceslices.Condition{}
	set := func(address string, state resourceslices.State, message string) {
		out[address] = resourceslices.Condition{State: state, Message: message}
	}
	for _, g := range in.scan.GPUs {
		switch at := g.PCIAddress; {
		case in.unknown:
			set(at, resourceslices.Unknown, inventory.ErrHealthUnknown.Error())
		case g.Silent:
			set(at, resourceslices.Unknown,
				gpu.SilentText+". Run nvidia-smi on the node, and reset the GPU or reboot the node")
		case in.notReady != "":
			set(at, resourceslices.NotReady, in.notReady)
		case in.incomplete && !whole.Has(at):
			set(at, resourceslices.Withheld,
				"a claim with an unreadable record may hold it; it is available again when that claim is looked up "+
					"or released")
		}
		if len(g.Faults) == 0 {
			continue
		}
		worst := g.Faults[0]
		state, _ := health.Lookup(worst.State)
		// A fault of groups alone would make available what is not.
		if _, unavailable := out[g.PCIAddress]; !unavailable || !state.GroupsOnly {
			set(g.PCIAddress, resourceslices.State(worst.State), worst.Cause+"; "+state.RemedyFor(g.PCIAddress))
		}
	}
	for address, resource := range in.served {
		set(address, resourceslices.DevicePlugin,
			"a device plugin serves it as "+resource+
				", or did minutes ago. Remove the device plugin from the node to publish the GPU")
	}
	return out
}

// external returns the external partitions, without the stuck ones.
func (in inputs) external() map[string][]gpu.Partition {
	out := map[string][]gpu.Partition{}
	if in.adoptExternal {
		return out
	}
	for _, g := range in.scan.GPUs {
		for _, p := range g.MIG.Partitions {
			overlaps := func(o gpu.Partition) bool { return o.Placement.Overlaps(p.Placement) }
			owned := in.owned[place{g.PCIAddress, p.Profile, p.Placement.Start}]
			if !owned && !slices.ContainsFunc(in.Stuck[g.PCIAddress], overlaps) {
				out[g.PCIAddress] = append(out[g.PCIAddress], p)
			}
		}
	}
	return out
}

// modes returns the GPUs whose MIG mode this driver may switch off.
func (in inputs) modes() map[string]bool {
	out := maps.Clone(in.Switched)
	for _, g := range in.scan.GPUs {
		switch {
		case g.MIG.Enabled && !g.MIG.Switchable && !in.AllowReset:
			delete(out, g.PCIAddress) // The switch would reset the GPU.
		case in.adoptExternal && g.MIG.Enabled:
			out[g.PCIAddress] = true
		}
	}
	return out
}
