// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

var long = strings.Repeat("x", 100_000)

func aClaim(results, consumers int, selectors ...string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", Count: 2}
	for _, s := range selectors {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "7"}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: exactly}}
	if results > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for i := range results {
		id := types.UID(fmt.Sprint("share", i))
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "r", Driver: "gpu.nvidia.com", Pool: strings.Repeat("p", 253), Device: fmt.Sprint("gpu-", i), AdminAccess: new(i%2 == 0), ShareID: &id,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")},
			Tolerations:      []resourceapi.DeviceToleration{{Key: "k", Operator: resourceapi.DeviceTolerationOpExists}},
		})
	}
	for i := range consumers {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprint(strings.Repeat("n", 200), i), UID: types.UID(fmt.Sprint("uid-", i)),
		})
	}
	return c
}

func kept[T any](t *testing.T, object T) T {
	t.Helper()
	out, ok := Keep(object).(T)
	if !ok {
		t.Fatalf("%T is kept as %T", object, Keep(object))
	}
	return out
}

// TestKeep_LargeClaim_HoldsItsDevices has the most devices and consumers that the API accepts, so that no tenant hides a GPU from
// any count by the size of a claim.
func TestKeep_LargeClaim_HoldsItsDevices(t *testing.T) {
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"one device": aClaim(1, 1, long), "all devices": aClaim(32, 256, long), "waits": aClaim(0, 0, long),
		"many classes": func() *resourceapi.ResourceClaim {
			c := aClaim(32, 256)
			for i := range 256 {
				c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
					Name: fmt.Sprint(i), Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: fmt.Sprint(i) + strings.Repeat("c", 249)},
				})
			}
			return c
		}(),
	} {
		out := kept(t, c)
		if !TooLarge(out) {
			t.Errorf("%s: it is not a mark", name)
		}
		if limit, _ := Limit(out); !fits(out, limit) {
			t.Errorf("%s: the mark is larger than the limit of %d", name, limit)
		}
		if len(out.Status.ReservedFor) != len(c.Status.ReservedFor) || (out.Status.Allocation == nil) != (c.Status.Allocation == nil) {
			t.Errorf("%s: %d consumers of %d", name, len(out.Status.ReservedFor), len(c.Status.ReservedFor))
		}
		if c.Status.Allocation == nil {
			continue
		}
		for i, want := range c.Status.Allocation.Devices.Results {
			got := out.Status.Allocation.Devices.Results[i]
			amount, all := got.ConsumedCapacity["memory"], want.ConsumedCapacity["memory"]
			if got.Device != want.Device || got.Pool != want.Pool || got.Driver != want.Driver || *got.ShareID != *want.ShareID ||
				*got.AdminAccess != *want.AdminAccess || amount.Cmp(all) != 0 {
				t.Errorf("%s: device %d is %+v", name, i, got)
			}
		}
	}
}

func TestKeep_UsualObjects_StayWhole(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("p", 60)}}
	for range 10 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "container", Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "nvidia.com/gpu": resource.MustParse("1")},
			Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "nvidia.com/gpu": resource.MustParse("1")},
		}})
	}
	node := &corev1.Node{}
	for i := range 250 { // Of a node with all features.
		metav1.SetMetaDataLabel(&node.ObjectMeta, fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.%d", i), "true")
	}
	template := &resourceapi.ResourceClaimTemplate{}
	template.Spec.Spec = aClaim(0, 0, strings.Repeat("e", 4000)).Spec
	for _, o := range []kruntime.Object{pod, node, template, aClaim(32, 256, strings.Repeat("e", 4000)), &resourceapi.DeviceClass{}, &corev1.Secret{Data: map[string][]byte{"x": []byte(long)}}} {
		if Keep(o) != any(o) {
			t.Errorf("%T is a mark", o)
		}
	}
}

// TestTooLarge_WrittenByATenant_IsNoMark decodes objects that claim to be marks.
func TestTooLarge_WrittenByATenant_IsNoMark(t *testing.T) {
	c := aClaim(0, 0)
	c.Annotations = map[string]string{"gpu-dra-driver/too-large": "true", tooLarge.Kind: "true"}
	if TooLarge(c) {
		t.Error("annotations make a mark")
	}
	written := kept(t, aClaim(0, 0, long))
	info, _ := kruntime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), kruntime.ContentTypeJSON)
	data, err := kruntime.Encode(info.Serializer, written)
	if err != nil {
		t.Fatal(err)
	}
	if o, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil); err == nil && TooLarge(o) {
		t.Error("a client decodes a mark")
	}
	if o := new(resourceapi.ResourceClaim); kruntime.DecodeInto(scheme.Codecs.UniversalDeserializer(), data, o) == nil && TooLarge(o) {
		t.Error("a client decodes a mark into a claim")
	}
}

func TestKeep_LargeObjectChanges_MarkChanges(t *testing.T) {
	before, after := aClaim(0, 0, long), aClaim(0, 0, long+"y")
	after.ResourceVersion = "8"
	if a, b := kept(t, before), kept(t, after); !TooLarge(a) || a.ResourceVersion != "7" || b.ResourceVersion != "8" {
		t.Errorf("versions %s and %s", a.ResourceVersion, b.ResourceVersion)
	}
	if o := kept(t, aClaim(0, 0)); TooLarge(o) {
		t.Error("a small object is a mark")
	}
}

// TestKeep_UnknownSelector_ProtectsAllPods has the only conclusion that preemption may draw from a disruption budget that is cut.
func TestKeep_UnknownSelector_ProtectsAllPods(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": long}}
	b.Status.DisruptionsAllowed = 5
	out := kept(t, b)
	selector, err := metav1.LabelSelectorAsSelector(out.Spec.Selector)
	if err != nil || !selector.Empty() || out.Status.DisruptionsAllowed != 0 {
		t.Errorf("%v %+v", err, out)
	}
}

func TestKeep_LargePod_HasPlaceAndRequests(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"a": long}}}
	p.Spec.NodeName, p.Spec.Priority = "n1", new(int32(5))
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("3")}}}}
	for _, resources := range []int{0, 5000} {
		for i := range resources {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(fmt.Sprintf("example.com/%d", i))] = resource.MustParse("1")
		}
		out := kept(t, p)
		cpu := out.Spec.Containers[0].Resources.Requests["cpu"]
		if !TooLarge(out) || out.Spec.NodeName != "n1" || *out.Spec.Priority != 5 || cpu.String() != "3" || out.Labels != nil {
			t.Errorf("%d resources: %+v", resources, out)
		}
	}
}

func TestKeep_LongEvent_BeginsTheSame(t *testing.T) {
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", ResourceVersion: "3"}, Reason: "Failed", Message: "é: " + strings.Repeat("é", 700_000)}
	e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: types.UID(long)}
	out := kept(t, e)
	if len(out.Message) > maxTextBytes || !strings.HasPrefix(out.Message, "é: é") || !strings.HasSuffix(out.Message, "é…") || !utf8.ValidString(out.Message) {
		t.Errorf("%d bytes, %.20q", len(out.Message), out.Message)
	}
	if out.Reason != "Failed" || out.InvolvedObject.Name != "p" || len(out.InvolvedObject.UID) > maxWordBytes {
		t.Errorf("%+v", out)
	}
	if kept(t, out).Message != out.Message {
		t.Error("a second time it is cut again")
	}
}

// TestFits_ManyEmptyParts_CountsMemory has objects that are a few kilobytes for the API server and megabytes in memory.
func TestFits_ManyEmptyParts_CountsMemory(t *testing.T) {
	p := &corev1.Pod{}
	p.Spec.Containers = make([]corev1.Container, 500)
	maps := &corev1.Pod{}
	for range 200 {
		maps.Spec.Containers = append(maps.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"a": {}}}})
	}
	for _, o := range []*corev1.Pod{p, maps} {
		if size := o.Size(); size > maxTenantBytes || fits(o, 8*maxTenantBytes) {
			t.Errorf("an object of %d bytes fits", size)
		}
	}
}

// TestFits_Limit_IsTheMemory compares the measure with the heap.
func TestFits_Limit_IsTheMemory(t *testing.T) {
	const n = 200
	all := make([]*resourceapi.ResourceClaim, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i] = aClaim(10, 10, strings.Clone(long[:4000]))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	size := int(after.HeapAlloc-before.HeapAlloc) / n
	least, most := 0, 1<<20
	for least < most {
		if middle := (least + most) / 2; fits(all[0], middle) {
			most = middle
		} else {
			least = middle + 1
		}
	}
	if least < size*3/4 || least > size*2 {
		t.Errorf("it is measured as %d bytes and takes %d", least, size)
	}
	runtime.KeepAlive(all)
}

func BenchmarkKeep(b *testing.B) {
	for name, o := range map[string]any{"usual": aClaim(1, 1, "device.driver == 'gpu.nvidia.com'"), "large": aClaim(1, 1, long)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Keep(o)
			}
		})
	}
}
