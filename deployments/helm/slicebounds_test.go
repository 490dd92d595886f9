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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/schedulerfault"
	"gpu-dra-driver/sim/profiles"
)

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
	out, seen := slicetest.Few(nodeOf(t, "hgx-h100", 2))
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
	claims := slicetest.Documented(classes)
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
	for _, c := range slicetest.Changes() {
		if !seedtest.Chosen(c.Name) {
			continue
		}
		in, denied := make([]*resourceapi.ResourceSlice, len(published)), ""
		for i, s := range published {
			in[i] = s.DeepCopy()
			c.Do(in[i])
			v1, beta := p.denies(t, in[i], "v1"), p.denies(t, in[i], "v1beta1")
			if v1 != beta {
				t.Errorf("%s: %q in v1 and %q in v1beta1", c.Name, v1, beta)
			}
			denied = max(denied, v1)
		}
		if (denied != "") != c.Denied {
			t.Errorf("%s: denied %q, want %v", c.Name, denied, c.Denied)
		}
		if denied != "" || c.Denied {
			continue // The allocator could compute for ever.
		}
		allowed++
		for name, claim := range claims {
			if c.NotWhole && slicetest.All(claim) {
				continue
			}
			if err := failed(in, claim); err != nil {
				t.Errorf("%s: the policy allows it, and %s fails: %v", c.Name, name, err)
			}
		}
	}
	if allowed < seedtest.Count(100) {
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

// denies returns the policy's message for the creation of a slice by the plugin of the node bad, "" if it is allowed.
func (p policy) denies(t *testing.T, s *resourceapi.ResourceSlice, version string) string {
	t.Helper()
	matched, denied := p.decide(t, map[string]any{
		"request": map[string]any{"userInfo": map[string]any{
			"username": "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin",
			"extra":    map[string]any{"authentication.kubernetes.io/node-name": []any{"bad"}},
		}},
		"object": asObject(t, s, version), "oldObject": nil,
	})
	if !matched {
		t.Fatal("the policy does not match the plugin")
	}
	return denied
}

// asObject returns a slice as a policy sees it.
func asObject(t *testing.T, s *resourceapi.ResourceSlice, version string) map[string]any {
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
	return o
}
