// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package slicetest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// attributeForms are all forms of an attribute's value, by the field of the API.
var attributeForms = map[string]resourceapi.DeviceAttribute{
	"string":   {StringValue: new("1.0.0")},
	"int":      {IntValue: new(int64(-1))},
	"bool":     {BoolValue: new(true)},
	"version":  {VersionValue: new("1.0.0")},
	"strings":  {StringValues: []string{"gpu"}},
	"ints":     {IntValues: []int64{1}},
	"bools":    {BoolValues: []bool{true}},
	"versions": {VersionValues: []string{"1.0.0"}},
}

// amounts are amounts that Kubernetes can read, and whether a slice may have them.
var amounts = map[string]bool{
	"0":                    true,
	"1":                    true,
	"100":                  true,
	"1Ki":                  true,
	"1k":                   true,
	"81559Mi":              true,
	"2Ti":                  true,
	"1073741824":           true,
	"1023Ti":               true,
	"-1":                   false,
	"-1Gi":                 false,
	"-9223372036854775808": false,
	"500m":                 false,
	"1500m":                false,
	"0.1":                  false,
	"1n":                   false,
	"1u":                   false,
	"1025Ti":               false,
	"9223372036854775807":  false,
	"9223372036854775808":  false,
	"18446744073709551616": false,
	"16Ei":                 false,
	"8E":                   false,
	"2P":                   false,
	"1e3":                  false,
	"1e15":                 false,
	"1e99":                 false,
	"1e999999999":          false,
	"9999999999999999Ti":   false,
	"12345678901234567":    false,
}

// Change is one value of a slice that a plugin can write.
type Change struct {
	Name string
	Do   func(*resourceapi.ResourceSlice)
	// Denied means that the policy must deny the slice.
	Denied bool
	// NotWhole means that the scheduler finds the pool incomplete or invalid, or that it has more devices than a claim
	// can have. Claims for all devices wait then; SECURITY.md says so.
	NotWhole bool
	// Repeated means that devices of the pool have the same name. Schedulers of 1.34 fail for all claims then.
	Repeated bool
}

// Changes returns each kind of each attribute and each range of each amount, from the catalogue.
func Changes() (out []Change) {
	device := func(name string, denied bool, do func(*resourceapi.Device)) {
		out = append(out, Change{Name: name, Denied: denied, Do: func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				do(&s.Spec.Devices[i])
			}
		}})
	}
	for _, e := range resourceslices.Catalogue() {
		name := resourceapi.QualifiedName(e.Name)
		own := resourceapi.QualifiedName(Driver + "/" + e.Name)
		if !e.Capacity {
			for form, value := range attributeForms {
				device("attribute "+e.Name+" as "+form, form != e.Type || e.Name == "type",
					func(d *resourceapi.Device) { d.Attributes[name] = value })
				if !strings.Contains(e.Name, "/") {
					device("attribute "+string(own)+" as "+form, true, func(d *resourceapi.Device) {
						d.Attributes[own] = value
					})
				}
			}
			device("no attribute "+e.Name, len(e.Always) > 0, func(d *resourceapi.Device) {
				delete(d.Attributes, name)
			})
			continue
		}
		device("no capacity "+e.Name, len(e.Always) > 0, func(d *resourceapi.Device) { delete(d.Capacity, name) })
		for text, fine := range amounts {
			q := resource.MustParse(text)
			set := func(what string, denied bool, do func(*resourceapi.DeviceCapacity)) {
				device("capacity "+e.Name+" "+what+" "+text, denied, func(d *resourceapi.Device) {
					c := d.Capacity[name]
					if c.RequestPolicy = c.RequestPolicy.DeepCopy(); c.RequestPolicy == nil {
						c.RequestPolicy = &resourceapi.CapacityRequestPolicy{}
					}
					do(&c)
					if d.Capacity == nil {
						d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
					}
					d.Capacity[name] = c
				})
			}
			ranged := func(p *resourceapi.CapacityRequestPolicy) *resourceapi.CapacityRequestPolicyRange {
				p.ValidValues = nil
				if p.ValidRange == nil {
					p.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("0"))}
				}
				return p.ValidRange
			}
			set("value", !fine, func(c *resourceapi.DeviceCapacity) { c.Value = q })
			set("without policy", !fine, func(c *resourceapi.DeviceCapacity) { c.Value, c.RequestPolicy = q, nil })
			set("default", !fine, func(c *resourceapi.DeviceCapacity) { c.RequestPolicy.Default = &q })
			set("min", !fine, func(c *resourceapi.DeviceCapacity) { ranged(c.RequestPolicy).Min = &q })
			set("max", !fine, func(c *resourceapi.DeviceCapacity) { ranged(c.RequestPolicy).Max = &q })
			set("step", !fine || text == "0", func(c *resourceapi.DeviceCapacity) { ranged(c.RequestPolicy).Step = &q })
			set("valid value", !fine, func(c *resourceapi.DeviceCapacity) {
				c.RequestPolicy.ValidRange, c.RequestPolicy.ValidValues = nil, []resource.Quantity{q}
			})
			device("capacity "+string(own)+" "+text, true, func(d *resourceapi.Device) {
				d.Capacity = maps.Clone(d.Capacity)
				if d.Capacity == nil {
					d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
				}
				d.Capacity[own] = resourceapi.DeviceCapacity{Value: q}
			})
		}
	}
	for text, fine := range amounts {
		q := resource.MustParse(text)
		out = append(out, Change{Name: "counters " + text, Denied: !fine, Do: func(s *resourceapi.ResourceSlice) {
			for _, set := range s.Spec.SharedCounters {
				for name := range set.Counters {
					set.Counters[name] = resourceapi.Counter{Value: q}
				}
			}
		}})
		device("consumed counters "+text, !fine, func(d *resourceapi.Device) {
			for _, set := range d.ConsumesCounters {
				for name := range set.Counters {
					set.Counters[name] = resourceapi.Counter{Value: q}
				}
			}
		})
	}
	return append(out, fields()...)
}

func (c *Change) repeat() { c.NotWhole, c.Repeated = true, true }

// fields returns changes of the other fields of a slice. The API server denies some of them too, but not each version
// of it.
func fields() (out []Change) {
	slice := func(name string, denied bool, do func(*resourceapi.ResourceSliceSpec)) *Change {
		out = append(out, Change{Name: name, Denied: denied, Do: func(s *resourceapi.ResourceSlice) { do(&s.Spec) }})
		return &out[len(out)-1]
	}
	device := func(name string, denied bool, do func(*resourceapi.Device)) *Change {
		return slice(name, denied, func(s *resourceapi.ResourceSliceSpec) {
			for i := range s.Devices {
				do(&s.Devices[i])
			}
		})
	}
	// The scheduler cannot parse the second one.
	for what, operator := range map[string]corev1.NodeSelectorOperator{"a": corev1.NodeSelectorOpExists,
		"an invalid": "?"} {
		nodes := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: operator}}},
		}}
		slice(what+" selector of nodes", true, func(s *resourceapi.ResourceSliceSpec) {
			s.NodeName, s.NodeSelector = nil, nodes
		})
		slice(what+" selector of nodes beside the name", true, func(s *resourceapi.ResourceSliceSpec) {
			s.NodeSelector = nodes
		})
		device(what+" selector of nodes of a device", true, func(d *resourceapi.Device) { d.NodeSelector = nodes })
	}
	slice("all nodes", true, func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) })
	slice("all nodes beside the name", true, func(s *resourceapi.ResourceSliceSpec) { s.AllNodes = new(true) })
	slice("no node", true, func(s *resourceapi.ResourceSliceSpec) { s.NodeName = nil })
	slice("another node", true, func(s *resourceapi.ResourceSliceSpec) { s.NodeName = new("good") })
	slice("nodes by device", true, func(s *resourceapi.ResourceSliceSpec) {
		s.NodeName, s.PerDeviceNodeSelection = nil, new(true)
	})
	slice("nodes by device beside the name", true, func(s *resourceapi.ResourceSliceSpec) {
		s.PerDeviceNodeSelection = new(true)
	})
	slice("another driver", true, func(s *resourceapi.ResourceSliceSpec) { s.Driver = "nic.example.com" })
	slice("another node's pool", true, func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "good/gpu" })
	slice("a pool of a longer node name", true, func(s *resourceapi.ResourceSliceSpec) {
		s.Pool.Name = wire.NodeOf(s.Pool.Name) + "2/gpu"
	})
	slice("a pool without node", true, func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "gpu" })
	slice("another pool", false, func(s *resourceapi.ResourceSliceSpec) {
		s.Pool.Name = wire.NodeOf(s.Pool.Name) + "/other"
	}).NotWhole = true
	slice("an attribute of types of partitions", true, func(s *resourceapi.ResourceSliceSpec) {
		s.PartitionTypeAttribute = new(resourceapi.FullyQualifiedName("a.example.com/b"))
	})
	slice("skipped operations of the node", true, func(s *resourceapi.ResourceSliceSpec) {
		s.SkipNodeOperations = []resourceapi.SkipNodeOperation{"*"}
	})
	for _, n := range []int64{math.MinInt64, -1, 0, 2, math.MaxInt64} {
		slice(fmt.Sprint("generation ", n), false, func(s *resourceapi.ResourceSliceSpec) { s.Pool.Generation = n })
		slice(fmt.Sprint("number of slices ", n), false, func(s *resourceapi.ResourceSliceSpec) {
			s.Pool.ResourceSliceCount = n
		}).NotWhole = true
	}
	slice("no devices", false, func(s *resourceapi.ResourceSliceSpec) { s.Devices = nil })
	slice("no counters", false, func(s *resourceapi.ResourceSliceSpec) { s.SharedCounters = nil }).NotWhole = true
	slice("counter sets twice", false, func(s *resourceapi.ResourceSliceSpec) {
		s.SharedCounters = append(s.SharedCounters, s.SharedCounters...)
	}).NotWhole = true
	slice("devices twice", false, func(s *resourceapi.ResourceSliceSpec) {
		s.Devices = append(s.Devices, s.Devices...)
	}).repeat()
	slice("most devices", false, func(s *resourceapi.ResourceSliceSpec) {
		for i := 0; len(s.Devices) > 0 && len(s.Devices) < resourceapi.ResourceSliceMaxDevices; i++ {
			d := *s.Devices[i].DeepCopy()
			d.Name = fmt.Sprint("more-", i)
			s.Devices = append(s.Devices, d)
		}
	}).NotWhole = true
	for _, name := range []string{"", "same", "UPPER_case", strings.Repeat("x", 64)} {
		device("name "+name, false, func(d *resourceapi.Device) { d.Name = name }).repeat()
	}
	device("a node", true, func(d *resourceapi.Device) { d.NodeName = new("good") })
	device("all nodes of a device", true, func(d *resourceapi.Device) { d.AllNodes = new(true) })
	device("bound to its node", true, func(d *resourceapi.Device) { d.BindsToNode = new(true) })
	device("conditions before binding", true, func(d *resourceapi.Device) { d.BindingConditions = []string{"never"} })
	device("conditions against binding", true, func(d *resourceapi.Device) {
		d.BindingFailureConditions = []string{"ever"}
	})
	device("resources of the node", true, func(d *resourceapi.Device) {
		d.NodeAllocatableResources = map[corev1.ResourceName]resourceapi.NodeAllocatableResource{"cpu": {}}
	})
	for _, several := range []bool{false, true} {
		device(fmt.Sprint("several allocations ", several), false, func(d *resourceapi.Device) {
			d.AllowMultipleAllocations = &several
		})
	}
	device("shareable without policies", false, func(d *resourceapi.Device) {
		d.AllowMultipleAllocations = new(true)
		for name, c := range d.Capacity {
			c.RequestPolicy = nil
			d.Capacity[name] = c
		}
	})
	for _, effect := range []resourceapi.DeviceTaintEffect{"", "?", resourceapi.DeviceTaintEffectNone,
		resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute} {
		device("taints with the effect "+string(effect), false, func(d *resourceapi.Device) {
			d.Taints = nil
			for i := range resourceapi.DeviceTaintsMaxLength {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{
					Key:       fmt.Sprint("k", i),
					Value:     strings.Repeat("v", 63),
					Effect:    effect,
					TimeAdded: &metav1.Time{},
				})
			}
		})
	}
	device("no taints", false, func(d *resourceapi.Device) { d.Taints = nil })
	uses := func(set, counter string) []resourceapi.DeviceCounterConsumption {
		return []resourceapi.DeviceCounterConsumption{
			{CounterSet: set, Counters: map[string]resourceapi.Counter{counter: {Value: resource.MustParse("1")}}},
		}
	}
	device("no consumed counters", false, func(d *resourceapi.Device) { d.ConsumesCounters = nil })
	device("an unknown counter set", false, func(d *resourceapi.Device) {
		d.ConsumesCounters = uses("none", "none")
	}).NotWhole = true
	device("an unknown counter", false, func(d *resourceapi.Device) {
		if len(d.ConsumesCounters) > 0 {
			d.ConsumesCounters = uses(d.ConsumesCounters[0].CounterSet, "none")
		}
	}).NotWhole = true
	device("counters consumed twice", false, func(d *resourceapi.Device) {
		d.ConsumesCounters = append(d.ConsumesCounters, d.ConsumesCounters...)
	})
	device("no attributes", true, func(d *resourceapi.Device) { d.Attributes = nil })
	device("no capacities", true, func(d *resourceapi.Device) { d.Capacity = nil })
	for _, kind := range []string{"", "none", "GPU", "gpu ", strings.Repeat("x", 64)} {
		device("type "+kind, true, func(d *resourceapi.Device) {
			d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: &kind}
		})
	}
	// The ends of the ranges of values, of the right kind.
	for _, e := range resourceslices.Catalogue() {
		var values []resourceapi.DeviceAttribute
		switch e.Type {
		case "string":
			for _, text := range []string{"", strings.Repeat("x", 64), strings.Repeat("ü", 32), "a\x00b", "(",
				"1g.10gb'"} {
				values = append(values, resourceapi.DeviceAttribute{StringValue: &text})
			}
		case "int":
			for _, n := range []int64{math.MinInt64, -1, 0, math.MaxInt64} {
				values = append(values, resourceapi.DeviceAttribute{IntValue: &n})
			}
		case "version":
			for _, text := range []string{"0.0.0", "1.0.0-rc.1+x", strings.Repeat("9", 18) + ".0.0"} {
				values = append(values, resourceapi.DeviceAttribute{VersionValue: &text})
			}
		}
		for i, value := range values {
			if e.Name != "type" {
				device(fmt.Sprint(e.Name, " with value ", i), false, func(d *resourceapi.Device) {
					d.Attributes[resourceapi.QualifiedName(e.Name)] = value
				})
			}
		}
	}
	for form, value := range attributeForms {
		for _, name := range []resourceapi.QualifiedName{"unknown", "resource.kubernetes.io/unknown",
			"other.example.com/type"} {
			several := slices.Contains([]string{"strings", "ints", "bools", "versions"}, form)
			device("attribute "+string(name)+" as "+form, several, func(d *resourceapi.Device) {
				d.Attributes[name] = value
			})
		}
	}
	return out
}

// Documented returns claims for each class alone, and further claims as in docs/ and demo/: selectors, parts of
// devices and constraints.
func Documented(classes map[string]*resourceapi.DeviceClass) map[string]resourceapi.DeviceClaim {
	out := map[string]resourceapi.DeviceClaim{}
	one := func(r resourceapi.ExactDeviceRequest) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &r}}}
	}
	for name := range classes {
		out["one of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1})
		out["two of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2})
		// All of more than 32 devices is an error, also of correct ones.
		if !strings.HasPrefix(name, "mig.") {
			out["all of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name,
				AllocationMode: resourceapi.DeviceAllocationModeAll})
		}
	}
	exact := func(class string, count int64, expressions ...string) resourceapi.ExactDeviceRequest {
		r := resourceapi.ExactDeviceRequest{DeviceClassName: class,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
		for _, e := range expressions {
			r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
				Expression: strings.NewReplacer("ATTRIBUTES", "device.attributes['"+Driver+"']", "CAPACITY",
					"device.capacity['"+Driver+"']").Replace(e),
			}})
		}
		return r
	}
	for name, r := range map[string]resourceapi.ExactDeviceRequest{
		"by model": exact(Driver, 1,
			"ATTRIBUTES.productName.lowerAscii().matches('^.*h100.*$') && "+
				"CAPACITY.memory.compareTo(quantity('79Gi')) >= 0",
			"ATTRIBUTES.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0 && "+
				"ATTRIBUTES.driverVersion.isGreaterThan(semver('535.0.0'))",
			"ATTRIBUTES.index == 1 && ATTRIBUTES.migCapable && "+
				"device.attributes['resource.kubernetes.io'].pciBusID != ''",
			"ATTRIBUTES.architecture.startsWith('H') && ATTRIBUTES.uuid.size() > 1 && "+
				"ATTRIBUTES.driverVersionRaw.contains('.')"),
		"by profile": exact("mig.nvidia.com", 1,
			"ATTRIBUTES.profile == '1g.10gb' && ATTRIBUTES.parentUUID.endsWith('0')"),
		"by size": exact("nvlink."+Driver, 1, "ATTRIBUTES.gpuCount >= 2"),
	} {
		out[name] = one(r)
	}
	for amount, text := range map[string]string{"memory": "10Gi", "compute": "30"} {
		r := exact(Driver, 1)
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			resourceapi.QualifiedName(amount): resource.MustParse(text),
		}}
		out["a part by "+amount] = one(r)
	}
	same := one(exact("mig.nvidia.com", 2, "ATTRIBUTES.profile == '1g.10gb'"))
	same.Constraints = []resourceapi.DeviceConstraint{
		{MatchAttribute: new(resourceapi.FullyQualifiedName(Driver + "/parentUUID"))},
	}
	out["two of one GPU"] = same
	out["alternatives"] = resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{
				Name:            "a",
				DeviceClassName: "nvlink." + Driver,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           1,
			},
			{Name: "b", DeviceClassName: Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		}}},
	}
	monitor := exact("monitor."+Driver, 1)
	monitor.AdminAccess, monitor.Tolerations = new(true),
		[]resourceapi.DeviceToleration{{Key: wire.MonitorTaint, Operator: resourceapi.DeviceTolerationOpExists}}
	out["monitoring"] = one(monitor)
	return out
}

// All reports whether a claim asks for all devices of a class.
func All(claim resourceapi.DeviceClaim) bool {
	return slices.ContainsFunc(claim.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AllocationMode == resourceapi.DeviceAllocationModeAll
	})
}

// Few leaves two devices of each type in the slices, and the smallest MIG profile. It returns the number of devices by
// type.
func Few(all []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, map[string]int) {
	seen := map[string]int{}
	for _, s := range all {
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
			kind := *d.Attributes["type"].StringValue
			if profile := d.Attributes["profile"].StringValue; profile != nil && *profile != "1g.10gb" ||
				seen[kind] == 2 {
				return true
			}
			seen[kind]++
			return false
		})
	}
	return all, seen
}

// Monitor returns a slice of a pool with one device, which claims get only with admin access.
func Monitor(node, pool string) *resourceapi.ResourceSlice {
	d := resourceapi.Device{
		Name:       "none",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
		Taints: []resourceapi.DeviceTaint{
			{Key: wire.MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	values := map[string]resourceapi.DeviceAttribute{
		"string":  {StringValue: new("none")},
		"int":     {IntValue: new(int64(-1))},
		"bool":    {BoolValue: new(false)},
		"version": {VersionValue: new(wire.UnknownVersion)},
	}
	for _, e := range resourceslices.Catalogue() {
		switch name := resourceapi.QualifiedName(e.Name); {
		case !slices.Contains(e.Always, gpu.KindMonitor):
		case e.Capacity:
			d.Capacity[name] = resourceapi.DeviceCapacity{}
		default:
			d.Attributes[name] = values[e.Type]
		}
	}
	d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: new(string(gpu.KindMonitor))}
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "invented-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   Driver,
			NodeName: &node,
			Pool:     resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
			Devices:  []resourceapi.Device{d},
		},
	}
}
