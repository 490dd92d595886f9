// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// Objects are the API objects of a cluster, with the ends of their reads. Slices are the driver's own.
type Objects struct {
	read.States
	Driver string
	Slices []*pool.Slice
	Claims []resourceapi.ResourceClaim
	Rules  []resourceapi.DeviceTaintRule
	// Closed says of nodes that take no pod why, in words of Closed.
	Closed map[string]string
	// Pods are those that could be read.
	Pods []corev1.Pod
}

// Closed says why a node takes no pod without special tolerations: it is not ready, or cordoned. Otherwise it is empty.
func Closed(n *corev1.Node) string {
	switch {
	case !waiting.Ready(n):
		return "node not ready"
	case n.Spec.Unschedulable:
		return "node cordoned"
	}
	return ""
}

// Nodes joins the objects. Nodes and GPUs are sorted by name.
func Nodes(o Objects) []Node {
	index := NewIndex(o)
	var out []Node
	for _, name := range slices.Sorted(maps.Keys(index.byNode)) {
		out = append(out, index.Node(name))
	}
	return out
}

// Index has the objects of a cluster by node. It is not safe for concurrent use.
type Index struct {
	driver string
	rules  []resourceapi.DeviceTaintRule
	closed map[string]string
	byNode map[string][]*pool.Slice
	held   map[string][]result
	// pools are the nodes of published pools.
	pools map[string]string
	cache *cache
	// unpublished is the use of GPUs that only claims name.
	unpublished Use
	// samples are the partitions that the nodes could publish.
	samples *pool.Samples
}

// NewIndex indexes objects. Nodes of devices that only claims name have no slices.
func NewIndex(o Objects) *Index {
	x := &Index{
		driver:  o.Driver,
		rules:   o.Rules,
		closed:  o.Closed,
		byNode:  map[string][]*pool.Slice{},
		held:    map[string][]result{},
		pools:   map[string]string{},
		cache:   &cache{map[*pool.Shape][]published{}, map[heldPool]room{}},
		samples: pool.NewSamples(),
	}
	x.unpublished = Unpublished
	if o.Failed(read.ResourceSlices) {
		x.unpublished = unread
	}
	for _, s := range o.Slices {
		x.byNode[s.Node] = append(x.byNode[s.Node], s)
		if node, published := x.pools[s.Pool.Name]; !published || s.Node < node {
			// A pool of several nodes is an error; the answer must not depend on the order.
			x.pools[s.Pool.Name] = s.Node
		}
	}
	x.samples.LearnAll(x.byNode)
	x.Hold(o.Claims)
	return x
}

// Hold adds claims.
func (x *Index) Hold(claims []resourceapi.ResourceClaim) {
	for _, r := range results(x.driver, claims) {
		node := x.NodeOf(r.Pool)
		x.held[node] = append(x.held[node], r)
		if _, published := x.byNode[node]; !published {
			x.byNode[node] = nil
		}
	}
}

// NodeOf returns the node of a pool: the one that publishes it, or else the one in its name.
func (x *Index) NodeOf(pool string) string {
	if node, published := x.pools[pool]; published {
		return node
	}
	return wire.NodeOf(pool)
}

// Names iterates over the names of the nodes, in no order.
func (x *Index) Names() iter.Seq[string] { return maps.Keys(x.byNode) }

// Layouts returns the names of the MIG layouts that a node publishes for others. If they change, any node can look
// different.
func (x *Index) Layouts() []string { return x.samples.Known() }

// Published reports whether the node has slices.
func (x *Index) Published(name string) bool { return len(x.byNode[name]) > 0 }

// Has reports whether the node has slices, or devices that a claim holds.
func (x *Index) Has(name string) bool {
	_, ok := x.byNode[name]
	return ok
}

// Node joins the objects of one node.
func (x *Index) Node(name string) Node {
	b := builder{
		unpublished: x.unpublished,
		cache:       x.cache,
		samples:     x.samples,
		node:        Node{Name: name, Closed: x.closed[name]},
		gpus:        map[string]*GPU{},
		devices:     map[string]published{},
	}
	b.slices(x.byNode[name], x.held[name])
	for _, r := range x.held[name] {
		b.allocation(r)
	}
	b.rules(x.driver, x.rules, x.pools)
	return b.done()
}

type result struct {
	resourceapi.DeviceRequestAllocationResult
	claim ClaimRef
	pods  []string
}

func results(driver string, claims []resourceapi.ResourceClaim) []result {
	var out []result
	for _, c := range claims {
		for r := range pool.Results(c.Status.Allocation, driver) {
			out = append(out, result{r, ClaimRef{c.Namespace, c.Name}, podsOf(c)})
		}
	}
	return out
}

// PodGroup is the prefix of the name of a PodGroup in a list of pods. Its claims do not name its pods.
const PodGroup = "podgroup/"

// podsOf returns the consumers of a claim: names of pods, and of PodGroups with their prefix.
func podsOf(c resourceapi.ResourceClaim) []string {
	var out []string
	for _, r := range c.Status.ReservedFor {
		switch (schema.GroupResource{Group: r.APIGroup, Resource: r.Resource}) {
		case schema.GroupResource{Resource: "pods"}:
			out = append(out, r.Name)
		case schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"}:
			out = append(out, PodGroup+r.Name)
		}
	}
	return out
}

// published is a device in the slices.
type published struct {
	device gpu.Device
	// readable means that the device's name follows the driver's form.
	readable bool
	// addresses name the GPUs that the device needs.
	addresses []string
	// start and size are in memory slices; size is 0 if the counters do not say.
	start, size int
}

// cache has the part of the work that is equal for nodes of one make.
type cache struct {
	devices map[*pool.Shape][]published
	// rooms has pools without unhealthy devices only.
	rooms map[heldPool]room
}

// parsed returns the devices of a shape, by the same index.
func (c *cache) parsed(s *pool.Shape) []published {
	if c.devices[s] == nil {
		out := make([]published, len(s.Spec.Devices))
		for i, d := range s.Spec.Devices {
			device, err := gpu.ParseName(d.Name)
			out[i] = published{device: device, readable: err == nil}
			if err == nil {
				out[i].addresses, out[i].start, out[i].size = pool.Needs(device, d)
			}
		}
		c.devices[s] = out
	}
	return c.devices[s]
}

// heldPool are the pools of a shape whose claims hold the same devices: most nodes are idle, or full.
type heldPool struct {
	shape [32]*pool.Shape
	held  string
}

// maxRooms limits the memory for a cluster in which each node's claims differ.
const maxRooms = 200

// room is the result of pool.Pool.Room.
type room struct {
	states  map[string]pool.State
	largest map[string]int64
}

func (c *cache) room(p pool.Pool, held []string, unhealthy bool) (r room) {
	shape, ok := p.Shape()
	key := heldPool{shape, strings.Join(held, ",")}
	if known, found := c.rooms[key]; ok && !unhealthy && found {
		return known
	}
	r.states, r.largest = p.Room(held)
	if ok && !unhealthy && len(c.rooms) < maxRooms {
		c.rooms[key] = r
	}
	return r
}

type builder struct {
	cache   *cache
	samples *pool.Samples
	node    Node
	gpus    map[string]*GPU
	devices map[string]published
	// unpublished is the use of GPUs that only claims name.
	unpublished Use
}

func (b *builder) gpu(address string) *GPU {
	if b.gpus[address] == nil {
		b.gpus[address] = &GPU{
			Name:       gpu.NameOf(address),
			Node:       b.node.Name,
			PCIAddress: address,
			Use:        b.unpublished,
		}
	}
	return b.gpus[address]
}

func (b *builder) slices(all []*pool.Slice, held []result) {
	uuids, taints := map[string]string{}, map[string]resourceapi.DeviceTaint{}
	cordons, reserved := map[string]resourceapi.DeviceTaint{}, map[string]resourceapi.DeviceTaint{}
	newest := b.samples.Add(pool.Of(all))
	b.node.Incomplete = len(all) > 0 && !newest.Whole
	for _, s := range newest.Slices {
		for at, a := range s.Identities() {
			if at.Name == "uuid" && s.Shape.Kinds[at.Device].Type != gpu.KindMonitor {
				uuids[s.Shape.Spec.Devices[at.Device].Name] = ptr.Deref(a.StringValue, "")
			}
		}
		for _, u := range s.Unhealthy {
			switch name := s.Shape.Spec.Devices[u.Device].Name; u.Taint.Key {
			case wire.CordonTaint:
				cordons[name] = u.Taint
			case wire.ReservedTaint:
				reserved[name] = u.Taint
			default:
				taints[name] = u.Taint
			}
		}
	}
	var names []string
	for _, r := range held {
		if !ptr.Deref(r.AdminAccess, false) {
			names = append(names, r.Device)
		}
	}
	room := b.cache.room(newest, names, len(taints)+len(cordons)+len(reserved) > 0)
	for _, s := range newest.Slices {
		if s.Possible {
			continue
		}
		parsed := b.cache.parsed(s.Shape)
		for i, d := range s.Shape.Spec.Devices {
			p := parsed[i]
			device := p.device
			if !p.readable {
				b.node.Unreadable++
				continue
			}
			b.devices[d.Name] = p
			for _, address := range p.addresses {
				g := b.gpu(address)
				g.Devices = append(g.Devices, PublishedDevice{s.Pool.Name, d.Name, cordons[d.Name].Effect})
				g.Use = Free
			}
			if device.Kind == gpu.KindGroup || device.Kind == gpu.KindMonitor {
				continue
			}
			g := b.gpu(device.PCIAddress)
			g.Product = cmp.Or(g.Product, s.Shape.Kinds[i].Product)
			g.MemorySlices = max(g.MemorySlices, p.start+p.size)
			if device.Kind == gpu.KindGPU {
				g.UUID = uuids[d.Name]
				capacity := d.Capacity["memory"].Value
				g.MemoryBytes = memory(capacity.Value())
				if p.size == 1 { // One counter stands for a GPU without MIG.
					g.MemorySlices = 0
				}
			}
			if room.states[d.Name] == pool.Free {
				g.UsableSlices = max(g.UsableSlices, p.size)
			}
			for _, use := range d.ConsumesCounters {
				g.UsableSlices = max(g.UsableSlices, int(min(room.largest[use.CounterSet], pool.MaxMemorySlices)))
			}
			// A partition that is only withdrawn has a healthy GPU.
			if t, unhealthy := taints[d.Name]; unhealthy && t.Value != string(resourceslices.NoDemand) {
				g.Health = cmp.Or(t.Value, "unhealthy")
			}
			for _, of := range []map[string]resourceapi.DeviceTaint{cordons, reserved} {
				if t, tainted := of[d.Name]; tainted {
					g.addTaint(t)
				}
			}
		}
	}
	for name, p := range b.devices {
		if p.device.Kind == gpu.KindMIG && uuids[name] != "" && !slices.Contains(names, name) {
			if g := b.gpu(p.device.PCIAddress); g.Use == Free {
				g.Use = external
			}
		}
	}
}

// memory leaves out sizes that no GPU has.
func memory(bytes int64) int64 {
	if bytes < 0 || bytes > 1<<50 {
		return 0
	}
	return bytes
}

func (b *builder) allocation(r result) {
	p, ok := b.devices[r.Device]
	if !ok {
		device, err := gpu.ParseName(r.Device)
		if err != nil {
			b.node.Unreadable++
			return
		}
		p = published{device: device, addresses: []string{device.PCIAddress}, start: device.Start}
	}
	a := Allocation{
		Device:  r.Device,
		Kind:    p.device.Kind,
		Profile: p.device.Profile,
		Start:   p.start,
		Size:    p.size,
		Claim:   r.claim,
		Pods:    r.pods,
		Share:   string(ptr.Deref(r.ShareID, "")),
		Admin:   ptr.Deref(r.AdminAccess, false) || p.device.Kind == gpu.KindMonitor,
	}
	if p.device.Kind != gpu.KindMIG {
		a.Start, a.Size = 0, 0
	}
	if consumed, ok := r.ConsumedCapacity["memory"]; ok {
		a.ShareBytes = memory(consumed.Value())
	}
	if consumed, ok := r.ConsumedCapacity["compute"]; ok {
		a.Compute = max(consumed.Value(), 0)
	}
	var members []string
	for _, address := range p.addresses {
		g := b.gpu(address)
		g.Allocations = append(g.Allocations, a)
		members = append(members, g.Name)
	}
	if p.device.Kind == gpu.KindGroup && !a.Admin {
		b.node.Groups = append(b.node.Groups, Group{r.Device, members, r.claim})
	}
}

// rules adds the taints of rules that select the whole GPU, or that select nothing narrower than its node.
func (b *builder) rules(driver string, all []resourceapi.DeviceTaintRule, pools map[string]string) {
	for _, r := range all {
		s := r.Spec.DeviceSelector // An empty one selects all devices, a missing one none.
		if s == nil || r.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNone || s.Driver != nil &&
			*s.Driver != driver {
			continue
		}
		if s.Pool != nil && cmp.Or(pools[*s.Pool], wire.NodeOf(*s.Pool)) != b.node.Name {
			continue
		}
		for _, g := range b.gpus {
			if s.Device == nil || *s.Device == g.Name {
				g.addTaint(r.Spec.Taint)
				g.Rules = append(g.Rules, r.Name)
			}
		}
	}
}

// addTaint adds a taint that the GPU does not have yet.
func (g *GPU) addTaint(added resourceapi.DeviceTaint) {
	if !slices.ContainsFunc(g.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Key == added.Key && t.Effect == added.Effect
	}) {
		g.Taints = append(g.Taints, added)
	}
}

func (b *builder) done() Node {
	for _, address := range slices.Sorted(maps.Keys(b.gpus)) {
		g := b.gpus[address]
		slices.SortStableFunc(g.Allocations, func(x, y Allocation) int {
			return cmp.Or(boolCompare(x.Admin, y.Admin), cmp.Compare(x.Start, y.Start), cmp.Compare(x.Device, y.Device),
				cmp.Compare(x.Claim.String(), y.Claim.String()), cmp.Compare(x.Share, y.Share))
		})
		slices.SortFunc(g.Devices, func(x, y PublishedDevice) int { return cmp.Compare(x.Name, y.Name) })
		g.Use = use(*g)
		g.FreeSlices = freeSlices(*g)
		g.Incomplete, g.Closed = b.node.Incomplete, b.node.Closed
		b.node.GPUs = append(b.node.GPUs, *g)
	}
	slices.SortFunc(b.node.Groups, func(x, y Group) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.Claim.String(), y.Claim.String()))
	})
	return b.node
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// use keeps Unpublished, unread, Free and External of a GPU without holders.
func use(g GPU) Use {
	out := g.Use
	if out == Unpublished || out == unread {
		return out
	}
	for _, a := range g.Allocations {
		switch {
		case a.Admin:
		case a.Kind == gpu.KindGroup:
			return grouped
		case a.Kind == gpu.KindMIG:
			out = Cut
		case out == Cut:
		case out == shared || a.ShareBytes > 0 && a.ShareBytes < g.MemoryBytes:
			out = shared
		default:
			out = Whole
		}
	}
	return out
}

// freeSlices counts the memory slices without a holder. Shares and groups hold all slices.
func freeSlices(g GPU) int {
	taken := map[int]bool{}
	for _, a := range g.Allocations {
		switch {
		case a.Admin:
		case a.Kind != gpu.KindMIG:
			return 0
		default:
			for i := a.Start; i < a.Start+a.Size && i < g.MemorySlices; i++ {
				taken[i] = true
			}
		}
	}
	return g.MemorySlices - len(taken)
}
