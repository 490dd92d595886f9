// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
	"gpu-dra-driver/pkg/gpu/topology/nccl"
)

// Names of the capacities of shares.
const (
	memoryCapacity  = "memory"
	computeCapacity = "compute"
)

// configure sets each device's share and sharing. The claim's parameters replace the class's; the node's setting is the
// default.
func (m maker) configure(p *Plan, configs []resourceapi.DeviceAllocationConfiguration) error {
	chosen := make([]parameters, len(p.Devices))
	for i := range p.Devices {
		d := &p.Devices[i]
		var err error
		if chosen[i], err = m.parameters(configs, *m.results[i], d.Kind); err != nil {
			return err
		}
		if g, _ := m.node.Snapshot.ByAddress(d.PCIAddress); !d.Admin && d.Kind != gpu.KindGroup {
			d.Share = m.share(p, *m.results[i], *d, g)
		}
	}
	for i := range p.Devices {
		if p.Devices[i].Admin {
			continue
		}
		if err := m.decideSharing(p, i, chosen); err != nil {
			return err
		}
	}
	if err := m.checkClaim(p); err != nil {
		return err
	}
	return m.setTopologyEnv(p, chosen)
}

// parameters are the settings of a device.
type parameters struct {
	sharing  *v1beta1.Sharing
	topology *v1beta1.Topology
	// where names their source, for errors.
	where string
	// config is the index of their configuration in the allocation.
	config int
}

// parameters decodes every opaque configuration for a result, from the class and the claim. It returns the last one for
// the device's kind.
func (m maker) parameters(
	configs []resourceapi.DeviceAllocationConfiguration, result resourceapi.DeviceRequestAllocationResult,
	kind gpu.Kind,
) (parameters, error) {
	var chosen parameters
	for i, config := range configs {
		if len(resourceclaim.ConfigForResult(configs[i:i+1], result)) == 0 {
			continue
		}
		if config.Opaque == nil || config.Opaque.Driver != m.node.Driver {
			continue
		}
		from := m.source
		if config.Source == resourceapi.AllocationConfigSourceClass {
			from = "the DeviceClass"
		}
		decoded, err := v1beta1.Decode(config.Opaque.Parameters.Raw)
		fits := err == nil && (decoded.Kind == v1beta1.KindMIGDeviceConfig) == (kind == gpu.KindMIG)
		if err == nil && !fits && config.Source == resourceapi.AllocationConfigSourceClaim &&
			slices.Contains(config.Requests, result.Request) {
			err = fmt.Errorf("kind: %s is not for a device of type %s", decoded.Kind, kind)
		}
		if err != nil {
			return parameters{}, m.invalid(result.Device, result.Request, from, err)
		}
		if fits {
			chosen = parameters{sharing: decoded.Sharing, topology: decoded.Topology, where: from, config: i}
		}
	}
	return chosen, nil
}

func (m maker) invalid(device, request, from string, err error) error {
	return m.claim.Refuse(device, claimerror.InvalidParameters,
		fmt.Errorf("parameters from %s for request %q: %w", from, request, err),
		"correct "+from+", then "+m.renew)
}

// share returns the scheduler's share, or zero if the scheduler gave the whole device.
func (m maker) share(p *Plan, result resourceapi.DeviceRequestAllocationResult, d Device, g gpu.GPU) Share {
	total, reserved := memory(g, d.Partition)
	total = cmp.Or(total, v1beta1.MaxMemory)
	charged := result.ConsumedCapacity[memoryCapacity]
	if result.ShareID == nil || charged.CmpInt64(int64(total-sharing.Step)) > 0 {
		return Share{} // The rest is smaller than the least share.
	}
	offer, _ := sharing.OfferOf(m.policy(g, d), g, d.Partition.Profile, m.node.NoMPS == "")
	s := Share{DeviceMemoryBytes: total, MaxShares: offer.MaxShares}
	if charged.Sign() > 0 { // Value overflows above int64.
		s.MemoryBytes = uint64(charged.Value())
	}
	if s.MemoryBytes < sharing.MinMemory && p.Refused == nil {
		p.Refused = m.claim.Refuse(d.Name, claimerror.InvalidAllocation,
			fmt.Errorf("request %q: capacity.requests.memory: %s is less than %dMi, the least share", d.Request,
				charged.String(), sharing.MinMemory>>20),
			"ask for more in "+m.source+", then "+m.renew)
	}
	compute := result.ConsumedCapacity[computeCapacity]
	if percent := compute.CmpInt64(0) >= 0 && compute.CmpInt64(100) <= 0; percent {
		s.Compute = int(compute.Value())
	} else if p.Refused == nil {
		p.Refused = m.claim.Refuse(d.Name, claimerror.InvalidAllocation,
			fmt.Errorf("request %q: capacity.requests.compute: %s is not a percentage", d.Request, compute.String()),
			"ask for 0 to 100 in "+m.source+", then "+m.renew)
	}
	s.UsableBytes = usable(s.MemoryBytes, total, reserved)
	return s
}

func (m maker) policy(g gpu.GPU, d Device) sharing.Policy {
	return m.node.Policy(g, d.Partition.Profile).With(m.standing(d).Strategy)
}

// standing returns the sharing that a share without a named strategy joins: that of other claims, or else its own from
// before a reboot. After a reboot, claims are prepared one by one, and each counts on the others.
func (m maker) standing(d Device) Sharing {
	if s, ok := m.node.Standing[d.Name]; ok {
		return s
	}
	for _, before := range m.node.Prepared.Devices {
		if before.Name == d.Name && before.Partial() &&
			(m.node.NoMPS == "" || !sharing.Of(before.Sharing.Strategy).Daemon) {
			return before.Sharing
		}
	}
	return Sharing{}
}

// configured lists the devices that have the i-th device's configuration, for limits that name them, and the i-th one.
func configured(
	devices []Device, chosen []parameters, i int, s gpu.Snapshot,
) (all []v1beta1.Device, one v1beta1.Device) {
	for j, d := range devices {
		if chosen[j].config != chosen[i].config || chosen[j].sharing == nil {
			continue
		}
		g, _ := s.ByAddress(d.PCIAddress)
		total, _ := memory(g, d.Partition)
		next := v1beta1.Device{UUID: d.UUID, Index: len(all), MemoryBytes: total}
		if d.Kind == gpu.KindMIG {
			next.UUID = d.Partition.UUID
		}
		if j == i {
			one = next
		}
		all = append(all, next)
	}
	return all, one
}

// decideSharing chooses the sharing of one device.
func (m maker) decideSharing(p *Plan, i int, all []parameters) error {
	d := &p.Devices[i]
	asked, where := all[i].sharing, all[i].where
	if d.Kind == gpu.KindGroup {
		if asked == nil {
			return nil
		}
		return m.invalid(d.Name, d.Request, where,
			errors.New("sharing: a group of GPUs cannot be shared, because one claim gets all of it"))
	}
	checked, one := configured(p.Devices, all, i, m.node.Snapshot)
	g, _ := m.node.Snapshot.ByAddress(d.PCIAddress)
	policy := m.policy(g, *d)
	var s sharing.Strategy
	interval := policy.Interval
	switch {
	case asked != nil:
		if err := asked.Check(one, checked); err != nil {
			return m.invalid(d.Name, d.Request, where, err)
		}
		s = sharing.Of(asked.Strategy)
		if t := asked.TimeSlicing; t != nil {
			interval = t.Interval
		}
	case d.Partial():
		s = sharing.Default(policy, g, m.node.NoMPS == "")
	}
	d.Sharing.Strategy = s.Name
	if s.Interval && interval != "" && d.Kind == gpu.KindGPU {
		d.Sharing.Timed, d.Sharing.Interval = true, interval.Number()
	}
	if first := m.standing(*d); asked == nil && s.Interval && first.Timed {
		d.Sharing.Timed, d.Sharing.Interval = true, first.Interval
	}
	if s.Limits && !g.MPSCapable {
		return m.invalid(d.Name, d.Request, cmp.Or(where, "the node's setting"),
			fmt.Errorf("sharing.strategy: %s does not support this GPU: %s cannot limit its clients (MPS needs "+
				"compute capability 7.0, and no vGPU guest)", s.Name, cmp.Or(g.ProductName, "it")))
	}
	if s.Daemon && m.node.NoMPS != "" && p.Refused == nil {
		p.Refused = m.claim.Refuse(d.Name, claimerror.DeviceNotReady, errors.New(m.node.NoMPS),
			"ask an administrator to enable it, or name the strategy TimeSlicing in a GpuConfig")
	}
	d.Sharing.OwnSharedMemory = s.Daemon && sharing.AnonymousMemory(m.node.Snapshot.Driver.Version)
	if d.Kind == gpu.KindGPU && d.Partial() && g.MemoryLimits { // The driver has none for partitions.
		d.Sharing.ContainerLimit = d.Share.UsableBytes
	}
	if s.Limits && d.Partial() {
		d.Sharing.MemoryLimit, d.Sharing.ActiveThreadPercentage = new(d.Share.UsableBytes), d.Share.Compute
	}
	if asked == nil || asked.MPS == nil {
		return nil
	}
	if limit, ok := asked.MPS.LimitFor(one); ok && (d.Sharing.MemoryLimit == nil || limit < *d.Sharing.MemoryLimit) {
		d.Sharing.MemoryLimit = &limit
	}
	if t := asked.MPS.DefaultActiveThreadPercentage; t != nil && *t > 0 &&
		(d.Sharing.ActiveThreadPercentage == 0 || *t < d.Sharing.ActiveThreadPercentage) {
		d.Sharing.ActiveThreadPercentage = *t
	}
	d.Sharing.MultiUser = asked.MPS.MultiUser
	return nil
}

// checkClaim checks the devices of the claim together.
func (m maker) checkClaim(p *Plan) error {
	requests := map[string]string{}
	const reallocateRemedy = "delete the pod and its claim so that the scheduler allocates again, and report the " +
		"scheduler that did this"
	used := map[string]Use{}
	for i, d := range p.Devices {
		by, sum := sharing.Of(d.Sharing.Strategy), used[d.Name]
		sum.Add(d.Share)
		used[d.Name] = sum
		if excess := sum.Excess(d.Share); d.Partial() && excess != "" && p.Refused == nil {
			p.Refused = m.claim.Refuse(d.Name, claimerror.InvalidAllocation,
				errors.New("with this claim alone "+excess), reallocateRemedy)
		}
		for _, other := range p.Devices[:i] {
			reason := d.Disagrees(other)
			switch {
			case d.Overlaps(other):
				return m.claim.Refuse(d.Name, claimerror.InvalidAllocation,
					fmt.Errorf("the allocation also holds %s, and the two overlap", other.Name), reallocateRemedy)
			case d.Shares(other) && reason != "":
				return m.claim.Refuse(d.Name, claimerror.InvalidParameters,
					fmt.Errorf("request %q %s", other.Request, reason),
					"give the requests the same strategy, time slice and multiUser in "+m.source+", then "+m.renew)
			case by.Daemon && by.Name == other.Sharing.Strategy && d.Request == other.Request && d.Name != other.Name:
				return m.claim.Refuse(d.Name, claimerror.InvalidParameters,
					fmt.Errorf("request %q has %s by %s as well, and a process reaches the %[3]s daemon of one "+
						"device only", d.Request, other.Name, by.Name),
					"ask for one device by "+string(by.Name)+
						" in a request, or name the strategy TimeSlicing in a GpuConfig")
			}
		}
		g, _ := m.node.Snapshot.ByAddress(d.PCIAddress)
		if !d.Partial() || !m.node.Policy(g, d.Partition.Profile).FailMany {
			continue
		}
		if other, many := requests[d.Request]; many && p.Refused == nil {
			p.Refused = m.claim.Refuse(d.Name, claimerror.InvalidAllocation,
				fmt.Errorf("request %q has a share of %s too, and this node's failRequestsGreaterThanOne allows one: "+
					"two shares are not twice a GPU's speed", d.Request, other),
				"ask for one, or for the GPU as a whole with capacity.requests.memory")
		}
		requests[d.Request] = d.Name
	}
	return nil
}

// setTopologyEnv sets the environment of a request's GPUs on its first device, because a container gets all devices of
// a request. A second request would overwrite it.
func (m maker) setTopologyEnv(p *Plan, chosen []parameters) error {
	first := -1
	for i, d := range p.Devices {
		asked := chosen[i].topology
		if asked == nil || d.Admin || !asked.CUDAVisibleDevices && !asked.NCCLTopology {
			continue
		}
		wrong := func(err error) error {
			return m.invalid(d.Name, d.Request, chosen[i].where, fmt.Errorf("topology: %w", err))
		}
		switch {
		case d.Partial():
			return wrong(errors.New("it is only for whole GPUs, but this is a share of one"))
		case first >= 0 && p.Devices[first].Request == d.Request:
			continue
		case first >= 0:
			return wrong(fmt.Errorf("request %q asks for it too, but a container has only one CUDA_VISIBLE_DEVICES "+
				"and one NCCL_TOPO_FILE; ask in one request, and name the request in the container",
				p.Devices[first].Request))
		}
		first = i
		gpus := m.gpusOf(*p, d.Request)
		if asked.CUDAVisibleDevices {
			uuids := make([]string, len(gpus))
			for n, g := range gpus {
				uuids[n] = g.UUID
			}
			p.Devices[i].TopologyEnv.VisibleDevices = strings.Join(uuids, ",")
		}
		if asked.NCCLTopology {
			p.Devices[i].TopologyEnv.NCCLTopology = nccl.File(gpus)
		}
	}
	return nil
}

// gpusOf returns the GPUs of a request in link order.
func (m maker) gpusOf(p Plan, request string) []gpu.GPU {
	var addresses []string
	for _, d := range p.Devices {
		if d.Request == request && !d.Admin {
			addresses = append(addresses, d.PCIAddress)
		}
	}
	var out []gpu.GPU
	for _, address := range topology.Sort(m.node.Snapshot.GPUs, addresses) {
		g, _ := m.node.Snapshot.ByAddress(address) // The Snapshot contains all planned devices.
		out = append(out, g)
	}
	return out
}
