// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/schedulerfault"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
	"gpu-dra-driver/pkg/node/sharing"
	"gpu-dra-driver/sim/profiles"
)

// attributeForms are all forms of an attribute's value, by the field of the API.
var attributeForms = map[string]resourceapi.DeviceAttribute{
	"string": {StringValue: new("1.0.0")}, "int": {IntValue: new(int64(-1))}, "bool": {BoolValue: new(true)},
	"version": {VersionValue: new("1.0.0")}, "strings": {StringValues: []string{"gpu"}}, "ints": {IntValues: []int64{1}},
	"bools": {BoolValues: []bool{true}}, "versions": {VersionValues: []string{"1.0.0"}},
}

// amounts are amounts that Kubernetes can read, and whether a slice may have them.
var amounts = map[string]bool{
	"0": true, "1": true, "100": true, "1Ki": true, "1k": true, "81559Mi": true, "2Ti": true, "1073741824": true, "1023Ti": true,
	"-1": false, "-1Gi": false, "-9223372036854775808": false, "500m": false, "1500m": false, "0.1": false, "1n": false, "1u": false,
	"1025Ti": false, "9223372036854775807": false, "9223372036854775808": false, "18446744073709551616": false, "16Ei": false, "8E": false, "2P": false,
	"1e3": false, "1e15": false, "1e99": false, "1e999999999": false, "9999999999999999Ti": false, "12345678901234567": false,
}

// change is one value of a slice that a plugin can write.
type change struct {
	name string
	do   func(*resourceapi.ResourceSlice)
	// denied means that the policy must deny the slice.
	denied bool
	// missing means that a selector must ask for the attribute with has().
	missing bool
}

// changes returns each kind of each attribute and each range of each amount, from the catalogue.
func changes() (out []change) {
	device := func(name string, denied bool, do func(*resourceapi.Device)) {
		out = append(out, change{name: name, denied: denied, do: func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				do(&s.Spec.Devices[i])
			}
		}})
	}
	for _, e := range resourceslices.Catalogue() {
		name := resourceapi.QualifiedName(e.Name)
		own := resourceapi.QualifiedName(slicetest.Driver + "/" + e.Name)
		if !e.Capacity {
			for form, value := range attributeForms {
				device("attribute "+e.Name+" as "+form, form != e.Type, func(d *resourceapi.Device) { d.Attributes[name] = value })
				if !strings.Contains(e.Name, "/") {
					device("attribute "+string(own)+" as "+form, true, func(d *resourceapi.Device) { d.Attributes[own] = value })
				}
			}
			device("no attribute "+e.Name, e.Name == "type", func(d *resourceapi.Device) { delete(d.Attributes, name) })
			out[len(out)-1].missing = true
			continue
		}
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
		out = append(out, change{name: "counters " + text, denied: !fine, do: func(s *resourceapi.ResourceSlice) {
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
	return out
}

// nodeOf returns all slices of a node with so many GPUs of a board (0: all of them), in the form of the API server.
func nodeOf(t *testing.T, board string, gpus int) []*resourceapi.ResourceSlice {
	t.Helper()
	snapshot, err := slicetest.Scan(board, "bad", gpus)
	if err != nil {
		t.Fatal(err)
	}
	settings, _, err := sharing.Parse([]byte("version: v1\npublish: []\n"))
	if err != nil {
		t.Fatal(err)
	}
	return slicetest.Slices(snapshot, "bad", settings)
}

// published returns the slices of a node with few devices of each type.
func published(t *testing.T) []*resourceapi.ResourceSlice {
	t.Helper()
	out := nodeOf(t, "hgx-h100", 2)
	seen := map[string]int{}
	for _, s := range out {
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
			kind := *d.Attributes["type"].StringValue
			if profile := d.Attributes["profile"].StringValue; profile != nil && *profile != "1g.10gb" {
				return true
			}
			seen[kind]++
			return seen[kind] > 2
		})
	}
	for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
		if seen[string(kind)] == 0 {
			t.Fatalf("the node has no device of the type %s", kind)
		}
	}
	return out
}

// kindOfNode are the kinds of devices in published, for the classes of the controller.
var kindOfNode = map[pool.Kind]int{
	{Type: gpu.KindGPU, Product: "NVIDIA H100 80GB HBM3", GPUs: 1}:                     1,
	{Type: gpu.KindMIG, Product: "NVIDIA H100 80GB HBM3", Profile: "1g.10gb", GPUs: 1}: 1,
	{Type: gpu.KindGroup, Product: "NVIDIA H100 80GB HBM3", GPUs: 2}:                   1,
}

// shippedClasses returns the classes of the chart and of the controller, by name.
func shippedClasses(t *testing.T) map[string]*resourceapi.DeviceClass {
	t.Helper()
	out := map[string]*resourceapi.DeviceClass{}
	for doc := range strings.SplitSeq(render(t, chart, "--set", "controller.enabled=false", "--show-only", "templates/deviceclasses.yaml"), "\n---\n") {
		var c resourceapi.DeviceClass
		if err := yaml.UnmarshalStrict([]byte(doc), &c); err != nil {
			t.Fatal(err)
		}
		out[c.Name] = &c
	}
	made, problems := deviceclasses.Build(kindOfNode, nil, deviceclasses.Options{Driver: slicetest.Driver, Models: true, Profiles: true, Groups: true})
	if len(problems) > 0 || len(made) != len(kindOfNode) {
		t.Fatal(len(made), problems)
	}
	for _, c := range made {
		out["controller's "+c.Name] = c.DeviceClass
	}
	return out
}

// documented are claims for each class alone, and further claims as in docs/ and demo/: selectors, parts of devices and
// constraints.
func documented(classes map[string]*resourceapi.DeviceClass) (alone, further map[string]resourceapi.DeviceClaim) {
	alone, further = map[string]resourceapi.DeviceClaim{}, map[string]resourceapi.DeviceClaim{}
	one := func(r resourceapi.ExactDeviceRequest) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &r}}}
	}
	for name := range classes {
		alone["one of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1})
		alone["two of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2})
		// All of more than 32 devices is an error, also of correct ones.
		if !strings.HasPrefix(name, "mig.") {
			alone["all of "+name] = one(resourceapi.ExactDeviceRequest{DeviceClassName: name, AllocationMode: resourceapi.DeviceAllocationModeAll})
		}
	}
	exact := func(class string, count int64, expressions ...string) resourceapi.ExactDeviceRequest {
		r := resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
		for _, e := range expressions {
			r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
				Expression: strings.NewReplacer("ATTRIBUTES", "device.attributes['"+slicetest.Driver+"']", "CAPACITY", "device.capacity['"+slicetest.Driver+"']").Replace(e),
			}})
		}
		return r
	}
	for name, r := range map[string]resourceapi.ExactDeviceRequest{
		"by model": exact(slicetest.Driver, 1, "ATTRIBUTES.productName.lowerAscii().matches('^.*h100.*$') && CAPACITY.memory.compareTo(quantity('79Gi')) >= 0",
			"ATTRIBUTES.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0 && ATTRIBUTES.driverVersion.isGreaterThan(semver('535.0.0'))",
			"ATTRIBUTES.index == 1 && ATTRIBUTES.migCapable && device.attributes['resource.kubernetes.io'].pciBusID != ''",
			"ATTRIBUTES.architecture.startsWith('H') && ATTRIBUTES.uuid.size() > 1 && ATTRIBUTES.driverVersionRaw.contains('.')"),
		"by profile": exact("mig.nvidia.com", 1, "ATTRIBUTES.profile == '1g.10gb' && ATTRIBUTES.parentUUID.endsWith('0')"),
		"by size":    exact("nvlink."+slicetest.Driver, 1, "ATTRIBUTES.gpuCount >= 2"),
	} {
		further[name] = one(r)
	}
	for amount, text := range map[string]string{"memory": "10Gi", "compute": "30"} {
		r := exact(slicetest.Driver, 1)
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			resourceapi.QualifiedName(amount): resource.MustParse(text),
		}}
		further["a part by "+amount] = one(r)
	}
	same := one(exact("mig.nvidia.com", 2, "ATTRIBUTES.profile == '1g.10gb'"))
	same.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(slicetest.Driver + "/parentUUID"))}}
	further["two of one GPU"] = same
	further["alternatives"] = resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "nvlink." + slicetest.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		{Name: "b", DeviceClassName: slicetest.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
	monitor := exact("monitor."+slicetest.Driver, 1)
	monitor.AdminAccess, monitor.Tolerations = new(true), []resourceapi.DeviceToleration{{Key: resourceslices.MonitorTaint, Operator: resourceapi.DeviceTolerationOpExists}}
	further["monitoring"] = one(monitor)
	return alone, further
}

// lister are classes for the allocator.
type lister map[string]*resourceapi.DeviceClass

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return nil, errors.New("not used") }

func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	if c := l[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no class %s", name)
}

// TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn changes each value of a node's slices, as a program with a plugin's
// token can. With some values the scheduler's allocator returns an error for a shipped class or a documented claim. The
// policy must deny them: such an error ends the scheduling of the pod on all nodes.
func TestSlicesPolicy_AnyValueOfAnyField_SchedulerGoesOn(t *testing.T) {
	p, classes := loadPolicy(t), shippedClasses(t)
	alone, further := documented(classes)
	compiled := dracel.NewCache(100, dracel.Features{EnableConsumableCapacity: true})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}
	published := published(t)
	failed := func(in []*resourceapi.ResourceSlice, claim resourceapi.DeviceClaim) error {
		state := structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		}
		a, err := structured.NewAllocator(t.Context(), ask.Features(schedulerfault.Version{}), state, lister(classes), in, compiled)
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourceapi.ResourceClaimSpec{Devices: claim}}})
		if errors.Is(err, structured.ErrFailedAllocationOnNode) {
			return nil
		}
		return err
	}
	allowed := 0
	for _, c := range changes() {
		in, denied := make([]*resourceapi.ResourceSlice, len(published)), ""
		for i, s := range published {
			in[i] = s.DeepCopy()
			c.do(in[i])
			v1, beta := p.denies(t, in[i], "v1"), p.denies(t, in[i], "v1beta1")
			if v1 != beta {
				t.Errorf("%s: %q in v1 and %q in v1beta1", c.name, v1, beta)
			}
			denied = max(denied, v1)
		}
		if (denied != "") != c.denied {
			t.Errorf("%s: denied %q, want %v", c.name, denied, c.denied)
		}
		if denied != "" || c.denied {
			continue // The allocator could compute for ever.
		}
		allowed++
		tried := maps.Clone(alone)
		if !c.missing { // SECURITY.md names the other claims of missing attributes as not bounded.
			maps.Copy(tried, further)
		}
		for name, claim := range tried {
			if err := failed(in, claim); err != nil {
				t.Errorf("%s: the policy allows it, and %s fails: %v", c.name, name, err)
			}
		}
	}
	if allowed < 100 {
		t.Errorf("the policy allows only %d changes", allowed)
	}
}

// TestSlicesPolicy_EveryBoard_AllowedWithinBudget also fills a slice to the limits of the API. A server denies a slice if
// the evaluation of an expression costs more than its budget.
func TestSlicesPolicy_EveryBoard_AllowedWithinBudget(t *testing.T) {
	p := loadPolicy(t)
	var largest resourceapi.Device
	for _, board := range profiles.Names() {
		for _, s := range nodeOf(t, board, 0) {
			for _, version := range []string{"v1", "v1beta1"} {
				if denied := p.denies(t, s, version); denied != "" {
					t.Errorf("a slice of %s is denied in %s: %s", board, version, denied)
				}
			}
			for _, d := range s.Spec.Devices {
				if len(d.Attributes)+len(d.Capacity) > len(largest.Attributes)+len(largest.Capacity) {
					largest = d
				}
			}
		}
	}
	for i := 0; len(largest.Attributes)+len(largest.Capacity) < resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice; i++ {
		largest.Capacity[resourceapi.QualifiedName(fmt.Sprintf("more%d", i))] = largest.Capacity["memory"]
	}
	full := nodeOf(t, "hgx-h100", 1)[0].DeepCopy()
	full.Spec.SharedCounters, full.Spec.Devices = nil, slices.Repeat([]resourceapi.Device{largest}, resourceapi.ResourceSliceMaxDevices)
	if denied := p.denies(t, full, "v1"); denied != "" {
		t.Errorf("a slice of %d devices with all attributes is denied: %s", len(full.Spec.Devices), denied)
	}
}

// denies returns the policy's message for the creation of a slice by the plugin of its node, "" if it is allowed.
func (p policy) denies(t *testing.T, s *resourceapi.ResourceSlice, version string) string {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	devices, _ := o["spec"].(map[string]any)["devices"].([]any)
	if version == "v1beta1" {
		for i, d := range devices {
			basic := maps.Clone(d.(map[string]any))
			delete(basic, "name")
			devices[i] = map[string]any{"name": d.(map[string]any)["name"], "basic": basic}
		}
	}
	matched, denied := p.decide(t, map[string]any{
		"request": map[string]any{"userInfo": map[string]any{
			"username": "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin",
			"extra":    map[string]any{"authentication.kubernetes.io/node-name": []any{*s.Spec.NodeName}},
		}},
		"object": o, "oldObject": nil,
	})
	if !matched {
		t.Fatal("the policy does not match the plugin")
	}
	return denied
}
