// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
)

// Counter returns the charges of claims, for a cluster with one pool of each shape of nodes. It is safe for concurrent
// use.
type Counter struct {
	asker   ask.Asker
	driver  string
	devices []priced
	// known caches the costs of one device of a request. Equal requests at the same time share one evaluation.
	known       *lru.Cache
	evaluations singleflight.Group
}

// priced is a device with its size.
type priced struct {
	ask.Candidate
	pool.Kind
	size Amount
}

// NewCounter returns the counter of a cluster.
func NewCounter(driver string, asker ask.Asker, pools []pool.Pool) *Counter {
	c := &Counter{asker: asker, driver: driver, known: lru.New(1000)}
	for _, p := range pools {
		slices := p.MemorySlices()
		for _, s := range p.Slices {
			for i, d := range s.Shape.Spec.Devices {
				if kind := s.Shape.Kinds[i]; kind.Type != gpu.KindMonitor {
					c.devices = append(c.devices, priced{ask.Published(s.Shape, i), kind, sizeOf(d, kind, slices)})
				}
			}
		}
	}
	return c
}

func sizeOf(d resourceapi.Device, kind pool.Kind, slices map[string]int64) Amount {
	memory := d.Capacity["memory"].Value
	return Amount{pool.MilliGPUs(d, kind, slices), max(memory.Value(), 0)}
}

// Refused is the reason for which a claim cannot be counted, and is refused under each budget.
type Refused string

func (r Refused) Error() string { return string(r) }

// ErrTime means that the time was up. A second attempt continues.
var ErrTime = errors.New("the devices that the claim could get were not counted in time")

// Largest returns the cost of the largest devices that a claim could get. The error is Refused or ErrTime.
func (c *Counter) Largest(ctx context.Context, devices resourceapi.DeviceClaim) (total Charge, err error) {
	for _, r := range devices.Requests {
		if r.Exactly == nil && len(r.FirstAvailable) == 0 {
			return total, Refused(fmt.Sprintf("request %s: it is of a kind that this version of the driver "+
				"cannot count", r.Name))
		}
	}
	dearest, order := map[string]Charge{}, []string{}
	for _, q := range c.asker.Requests(devices) {
		one, err := c.request(ctx, q)
		if err != nil {
			return total, err
		}
		name := cmp.Or(q.Parent, q.Name)
		if _, seen := dearest[name]; !seen {
			order = append(order, name)
		}
		dearest[name] = dearest[name].Larger(one)
	}
	for _, name := range order {
		total = total.Plus(dearest[name])
	}
	return total, nil
}

// request returns the cost of a request or an alternative.
func (c *Counter) request(ctx context.Context, q ask.Request) (Charge, error) {
	if q.Admin() {
		return Charge{}, nil
	}
	if q.Class == nil {
		return Charge{}, Refused(fmt.Sprintf("request %s: DeviceClass %s does not exist, so that its devices cannot "+
			"be counted", q.Name, q.DeviceClassName))
	}
	if bounded.TooLarge(q.Class) {
		return Charge{Unknown: fmt.Sprintf("request %s: DeviceClass %s is too large to judge", q.Name,
			q.DeviceClassName), UnknownGPUs: true}, nil
	}
	one, err := c.device(ctx, q)
	switch {
	case err != nil:
		return Charge{}, err
	case one.Zero():
		return Charge{}, nil
	case q.Devices() == 0:
		return Charge{}, Refused(fmt.Sprintf("request %s: allocationMode All cannot be counted before the "+
			"allocation; ask for a count", q.Name))
	}
	return one.times(q.Devices()), nil
}

// device returns the cost of the largest device that a request could get.
func (c *Counter) device(ctx context.Context, q ask.Request) (Charge, error) {
	asked := map[resourceapi.QualifiedName]resource.Quantity{}
	if q.Capacity != nil {
		asked = q.Capacity.Requests
	}
	expressions := q.Expressions()
	text, _ := json.Marshal([]any{expressions, asked}) // They always encode.
	key := sha256.Sum256(text)
	for {
		if known, ok := c.known.Get(key); ok {
			return c.named(known.(Charge), q), nil
		}
		one, err, _ := c.evaluations.Do(string(key[:]), func() (any, error) {
			one, err := c.largest(ctx, expressions, asked)
			if err == nil {
				c.known.Add(key, one)
			}
			return one, err
		})
		switch {
		case err == nil:
			return c.named(one.(Charge), q), nil
		case ctx.Err() != nil: // Otherwise the time of another caller was up, and this one goes on from there.
			return Charge{}, err
		}
	}
}

// largest returns the cost of the largest device that fits.
func (c *Counter) largest(
	ctx context.Context, expressions []string, asked map[resourceapi.QualifiedName]resource.Quantity,
) (Charge, error) {
	// The pools know the identities of one node of each shape only.
	expressions = slices.DeleteFunc(slices.Clone(expressions), c.identifies)
	out, found := Charge{}, false
	for _, d := range c.devices {
		if !fits(d.Candidate, asked) {
			continue
		}
		failed, err := c.asker.Failing(ctx, expressions, d.Candidate)
		if ctx.Err() != nil {
			return Charge{}, ErrTime
		}
		if err == nil && failed == "" {
			found = true
			out = out.Larger(of(part(d.Candidate, d.size, asked), d.Product))
		}
	}
	if !found {
		out = c.absent(expressions)
	}
	return out, nil
}

// named adds the request to the reason, which the cache does not have.
func (c *Counter) named(charge Charge, q ask.Request) Charge {
	if charge.Unknown != "" {
		charge.Unknown = fmt.Sprintf("request %s: %s", q.Name, charge.Unknown)
	}
	return charge
}

// identifies reports whether an expression reads identities of boards.
func (c *Counter) identifies(expression string) bool {
	return slices.ContainsFunc(c.asker.Read(expression).Names, func(n selector.Name) bool {
		return n.Domain == c.driver && !n.Capacity && pool.Identity(n.ID)
	})
}

// absent returns the cost of a device that the cluster does not have now, because its nodes are away or not made yet.
func (c *Counter) absent(expressions []string) Charge {
	named, ours, kind := false, false, ""
	for _, e := range expressions {
		r := c.asker.Read(e)
		if r.Driver != "" && r.Driver != c.driver {
			return Charge{}
		}
		ours = ours || r.Driver == c.driver
		kind = cmp.Or(r.Type(c.driver), kind)
		for _, n := range r.Names {
			// Devices of all drivers can have the attributes of Kubernetes.
			named, ours = true, ours || n.Domain == c.driver ||
				n.Domain+"/" == deviceattribute.StandardDeviceAttributePrefix
		}
	}
	switch {
	case named && !ours, kind == string(gpu.KindMonitor):
		return Charge{} // Attributes of another driver, or a device that costs nothing.
	case kind == string(gpu.KindGPU), kind == string(gpu.KindMIG):
		return Charge{Amount: Amount{MilliGPUs: 1000},
			Unknown: "no device of the cluster as it is now matches its class and selectors, so that its memory and " +
				"model are unknown"}
	}
	return Charge{Unknown: "no device of the cluster as it is now matches its class and selectors, so that its size " +
		"is unknown", UnknownGPUs: true}
}

// fits reports whether a device has as much of each capacity as a request asks for.
func fits(c ask.Candidate, asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, amount := range asked {
		if has, ok := c.Device.Capacity[name]; !ok || has.Value.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}

// part returns the part of a device that a share consumes, or all of a device without shares. Its number of GPUs is by
// the larger of its parts of memory and compute.
func part(c ask.Candidate, size Amount, asked map[resourceapi.QualifiedName]resource.Quantity) Amount {
	if !ptr.Deref(c.Device.AllowMultipleAllocations, false) {
		return size
	}
	taken := map[resourceapi.QualifiedName]int64{}
	for _, name := range shared {
		if capacity, ok := c.Device.Capacity[name]; ok {
			var amount *resource.Quantity
			if q, ok := asked[name]; ok {
				amount = &q
			}
			taken[name] = consumed(capacity, amount)
		}
	}
	return partOf(c.Device.Capacity, size, taken)
}

// shared are the capacities by which shares divide a device.
var shared = []resourceapi.QualifiedName{"memory", "compute"}

func partOf(
	capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity, size Amount,
	taken map[resourceapi.QualifiedName]int64,
) Amount {
	out := Amount{MilliGPUs: 1, Bytes: size.Bytes} // The smallest share costs a thousandth.
	for _, name := range shared {
		value := capacity[name].Value
		n, ok := taken[name]
		switch all := value.Value(); {
		case !ok || all <= 0:
		case n >= all || all > 1<<44: // Then the product could overflow.
			out.MilliGPUs = size.MilliGPUs
		default:
			out.MilliGPUs = max(out.MilliGPUs, (n*size.MilliGPUs+all-1)/all)
		}
	}
	if n, ok := taken["memory"]; ok {
		out.Bytes = min(n, size.Bytes)
	}
	out.MilliGPUs = min(out.MilliGPUs, size.MilliGPUs)
	return out
}

// consumed returns how much a share consumes of a capacity: at least as much as the scheduler calculates.
func consumed(c resourceapi.DeviceCapacity, asked *resource.Quantity) int64 {
	all, p := c.Value.Value(), c.RequestPolicy
	if p == nil {
		return all
	}
	if asked == nil {
		if p.Default == nil {
			return all
		}
		asked = p.Default
	}
	n := max(asked.Value(), 0)
	if r := p.ValidRange; r != nil && r.Min != nil {
		least := r.Min.Value()
		n = max(n, least)
		if r.Step != nil && r.Step.Value() > 0 {
			step := r.Step.Value()
			n = least + (n-least+step-1)/step*step
		}
	}
	for _, v := range p.ValidValues {
		if v.Value() >= n {
			return v.Value()
		}
	}
	return n
}

// Pools finds published devices by their pool.
type Pools map[string]*Published

// Published is a node's pool with the sizes of its GPUs.
type Published struct {
	pool.Pool
	slices map[string]int64
}

// PoolsOf returns the pools of nodes.
func PoolsOf(nodes []pool.Pool) Pools {
	out := Pools{}
	for _, p := range nodes {
		for _, s := range p.Slices {
			if out[s.Pool.Name] == nil {
				out[s.Pool.Name] = &Published{Pool: p}
			}
		}
	}
	return out
}

func (p *Published) size(of, device string) (d resourceapi.Device, kind pool.Kind, size Amount, ok bool) {
	if p == nil {
		return d, kind, size, false
	}
	if p.slices == nil {
		p.slices = p.MemorySlices()
	}
	for _, s := range p.Slices {
		if s.Pool.Name != of {
			continue
		}
		for i := range s.Shape.Spec.Devices {
			if d = s.Shape.Spec.Devices[i]; d.Name == device {
				return d, s.Shape.Kinds[i], sizeOf(d, s.Shape.Kinds[i], p.slices), true
			}
		}
	}
	return d, kind, size, false
}

// Allocated returns the cost of the devices that a claim has. ok is false if a device is not published, so that its
// size is unknown.
func (c *Counter) Allocated(a *resourceapi.AllocationResult, in Pools) (total Charge, ok bool) {
	for r := range pool.Results(a, c.driver) {
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		d, kind, size, known := in[r.Pool].size(r.Pool, r.Device)
		if !known {
			return Charge{}, false
		}
		if kind.Type == gpu.KindMonitor {
			continue
		}
		if r.ShareID != nil || len(r.ConsumedCapacity) > 0 {
			taken := map[resourceapi.QualifiedName]int64{}
			for name, q := range r.ConsumedCapacity {
				taken[name] = q.Value()
			}
			size = partOf(d.Capacity, size, taken)
		}
		total = total.Plus(of(size, kind.Product))
	}
	return total, true
}

// Pod returns the cost of the extended resources of a pod.
func (c *Counter) Pod(ctx context.Context, spec corev1.PodSpec) (total Charge, err error) {
	all, err := c.asker.Classes.List(labels.Everything())
	if err != nil {
		return total, fmt.Errorf("list the DeviceClasses that serve a pod's resources: %w", err)
	}
	for _, r := range waiting.Requests(&corev1.Pod{Spec: spec}, selector.ResourcesOf(all)) {
		one, err := c.Largest(ctx, resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}})
		if err != nil {
			return Charge{}, err
		}
		total = total.Plus(one)
	}
	return total, nil
}
