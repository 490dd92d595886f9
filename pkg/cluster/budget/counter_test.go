// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/selectortest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

const (
	ours = "device.driver == 'gpu.nvidia.com'"
	attr = "device.attributes['gpu.nvidia.com']."
	h100 = "NVIDIA H100 80GB HBM3"
	l40s = "NVIDIA L40S"
)

// newCounter is the counter of a cluster with a node of each make, n0, n1, …, and its pools.
func newCounter(t testing.TB, makes ...string) (*Counter, Pools) {
	t.Helper()
	pools := nodes(t, makes...)

	classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for name, expression := range map[string]string{
		"gpu.nvidia.com":            ours + " && " + attr + "type == 'gpu'",
		"mig.nvidia.com":            ours + " && " + attr + "type == 'mig'",
		"mig-1g.10gb.nvidia.com":    ours + " && " + attr + "type == 'mig' && has(" + attr + "profile) && " + attr + "profile == '1g.10gb'",
		"nvlink.gpu.nvidia.com":     ours + " && " + attr + "type == 'nvlink-group'",
		"nvlink-4.gpu.nvidia.com":   ours + " && " + attr + "type == 'nvlink-group' && " + attr + "gpuCount == 4",
		"nvidia-h100.nvidia.com":    ours + " && " + attr + "type == 'gpu' && " + attr + "productName == '" + h100 + "'",
		"nvidia-absent.nvidia.com":  ours + " && " + attr + "type == 'gpu' && " + attr + "productName == 'NVIDIA X'",
		"nvlink-16.gpu.nvidia.com":  ours + " && " + attr + "type == 'nvlink-group' && " + attr + "gpuCount == 16",
		"monitor.gpu.nvidia.com":    ours + " && " + attr + "type == 'monitor'",
		"nic.example.com":           "device.driver == 'nic.example.com'",
		"nic-attribute.example.com": "device.attributes['nic.example.com'].speed == 'fast'",
		"any.example.com":           "true",
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		if name == "gpu.nvidia.com" {
			class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		}
		if err := classes.Add(class); err != nil {
			t.Fatal(err)
		}
	}
	asker := ask.Asker{Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(classes)}
	return NewCounter("gpu.nvidia.com", asker, pools), PoolsOf(pools)
}

// nodes returns the pools of a node of each make.
func nodes(t testing.TB, makes ...string) (pools []pool.Pool) {
	t.Helper()
	shapes := &pool.Shapes{}
	for i, profile := range makes {
		found, err := slicetest.Node(profile, fmt.Sprintf("n%d", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		var all []*pool.Slice
		for _, s := range found {
			all = append(all, new(shapes.Trim(s)))
		}
		pools = append(pools, pool.Of(all).With(gpu.KindGroup, gpu.KindMonitor))
	}
	return pools
}

func devices(t testing.TB, text string) (out resourceapi.DeviceClaim) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte("requests:\n"+text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

const mib = 1 << 20

func TestLargest_Forms_CostTheLargestDeviceThatTheyCouldGet(t *testing.T) {
	c, _ := newCounter(t, "hgx-h100", "l40s-4")
	for name, w := range map[string]struct {
		text       string
		milli, mib int64
		models     map[string]int64 // Thousandths of a GPU.
	}{
		"a GPU":        {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com}}", 1000, 81559, map[string]int64{h100: 1000, l40s: 1000}},
		"two GPUs":     {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}", 2000, 2 * 81559, map[string]int64{h100: 2000, l40s: 2000}},
		"two requests": {"- {name: a, exactly: {deviceClassName: gpu.nvidia.com}}\n- {name: b, exactly: {deviceClassName: nvidia-h100.nvidia.com}}", 2000, 2 * 81559, map[string]int64{h100: 2000, l40s: 1000}},
		"a model":      {"- {name: r, exactly: {deviceClassName: nvidia-h100.nvidia.com}}", 1000, 81559, map[string]int64{h100: 1000}},
		"a selector":   {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: \"" + attr + "productName == '" + l40s + "'\"}}]}}", 1000, 46068, map[string]int64{l40s: 1000}},
		"a board":      {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: \"" + attr + "uuid == 'GPU-1'\"}}]}}", 1000, 81559, map[string]int64{h100: 1000, l40s: 1000}},
		"a partition":  {"- {name: r, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}", 125, 9856, map[string]int64{h100: 125}},
		"any":          {"- {name: r, exactly: {deviceClassName: mig.nvidia.com}}", 1000, 80896, map[string]int64{h100: 1000}},
		"a group":      {"- {name: r, exactly: {deviceClassName: nvlink-4.gpu.nvidia.com}}", 4000, 4 * 81559, map[string]int64{h100: 4000}},
		"any group":    {"- {name: r, exactly: {deviceClassName: nvlink.gpu.nvidia.com}}", 8000, 8 * 81559, map[string]int64{h100: 8000}},
		"any device":   {"- {name: r, exactly: {deviceClassName: any.example.com}}", 8000, 8 * 81559, map[string]int64{h100: 8000, l40s: 1000}},
		"a share": {"- {name: r, exactly: {deviceClassName: nvidia-h100.nvidia.com, capacity: {requests: {memory: 20Gi}}}}",
			(20480*1000 + 81558) / 81559, 20480, map[string]int64{h100: (20480*1000 + 81558) / 81559}},
		"a share by compute": {"- {name: r, exactly: {deviceClassName: nvidia-h100.nvidia.com, capacity: {requests: {memory: 8Gi, compute: '50'}}}}",
			500, 8192, map[string]int64{h100: 500}},
		"a share that only one model has": {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 60Gi}}}}",
			(61440*1000 + 81558) / 81559, 61440, map[string]int64{h100: (61440*1000 + 81558) / 81559}},
		"alternatives": {"- {name: r, firstAvailable: [{name: a, deviceClassName: mig-1g.10gb.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com, count: 3}, {name: c, deviceClassName: nvidia-h100.nvidia.com}]}",
			3000, 3 * 81559, map[string]int64{h100: 3000, l40s: 3000}},
		"admin access":     {"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}}", 0, 0, nil},
		"a monitor device": {"- {name: r, exactly: {deviceClassName: monitor.gpu.nvidia.com}}", 0, 0, nil},
		"all NICs":         {"- {name: r, exactly: {deviceClassName: nic.example.com, allocationMode: All}}", 0, 0, nil},
		"a fast NIC":       {"- {name: r, exactly: {deviceClassName: nic-attribute.example.com}}", 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // The second answer comes from the cache.
				got, err := c.Largest(t.Context(), devices(t, w.text))
				if err != nil {
					t.Fatal(err)
				}
				if got.MilliGPUs != w.milli || got.Bytes != w.mib*mib || got.Unknown != "" {
					t.Errorf("it costs %d/1000 GPUs and %d MiB (%s), want %d and %d", got.MilliGPUs, got.Bytes/mib, got.Unknown, w.milli, w.mib)
				}
				for model, n := range w.models {
					if got.Models[model].MilliGPUs != n {
						t.Errorf("%d/1000 of %s, want %d", got.Models[model].MilliGPUs, model, n)
					}
				}
				if len(got.Models) != len(w.models) {
					t.Errorf("models %v, want %v", got.Models, w.models)
				}
			}
		})
	}
}

// looks counts the devices that are evaluated with a context: each evaluation asks whether the time is up.
type looks struct {
	context.Context
	n *atomic.Int64
}

func (l looks) Err() error {
	l.n.Add(1)
	return l.Context.Err()
}

// TestLargest_EqualRequestsAtOnce_EvaluatedOnce: a hundred claims of a Job are created at once.
func TestLargest_EqualRequestsAtOnce_EvaluatedOnce(t *testing.T) {
	asked := devices(t, "- {name: r, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}")
	evaluated := func(claims int) int64 {
		c, _ := newCounter(t, "hgx-h100", "hgx-b200", "dgx-a100-80")
		ctx, start := looks{t.Context(), new(atomic.Int64)}, make(chan struct{})
		var all sync.WaitGroup
		for range claims {
			all.Go(func() {
				<-start
				if cost, err := c.Largest(ctx, asked); err != nil || cost.MilliGPUs == 0 {
					t.Errorf("%+v, %v", cost, err)
				}
			})
		}
		close(start)
		all.Wait()
		return ctx.n.Load()
	}
	if one, many := evaluated(1), evaluated(100); one == 0 || many > one+200 {
		t.Errorf("one claim evaluates %d devices, a hundred %d", one, many)
	}
}

// held is a context whose time is up as soon as the test lets its evaluation go on.
type held struct {
	context.Context
	goOn chan struct{}
}

func (h held) Err() error {
	<-h.goOn
	return context.DeadlineExceeded
}

// TestLargest_TimeOfAnotherIsUp_GoesOn: a caller with time must not get the error of the one whose evaluation it waits for.
func TestLargest_TimeOfAnotherIsUp_GoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := devices(t, "- {name: r, exactly: {deviceClassName: mig-1g.10gb.nvidia.com}}")
		c, _ := newCounter(t, "hgx-h100")
		ctx := held{t.Context(), make(chan struct{})}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := c.Largest(ctx, asked); !errors.Is(err, ErrTime) {
				t.Errorf("without time: %v", err)
			}
		})
		synctest.Wait() // It evaluates.
		both.Go(func() {
			if cost, err := c.Largest(t.Context(), asked); err != nil || cost.MilliGPUs == 0 {
				t.Errorf("%+v, %v", cost, err)
			}
		})
		synctest.Wait() // The second one waits for it.
		close(ctx.goOn)
		both.Wait()
	})
}

func TestLargest_Uncountable_Refused(t *testing.T) {
	c, _ := newCounter(t, "hgx-h100")
	for text, want := range map[string]string{
		"- {name: r, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}":                   "request r: allocationMode All cannot be counted",
		"- {name: r, firstAvailable: [{name: a, deviceClassName: mig.nvidia.com, allocationMode: All}]}": "request r/a: allocationMode All cannot be counted",
		"- {name: r, exactly: {deviceClassName: none.example.com}}":                                      "DeviceClass none.example.com does not exist",
		"- {name: r}": "of a kind that this version",
	} {
		if _, err := c.Largest(t.Context(), devices(t, text)); !errors.As(err, new(Refused)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	fresh, _ := newCounter(t, "hgx-h100")
	if _, err := fresh.Largest(ended, devices(t, "- {name: r, exactly: {deviceClassName: gpu.nvidia.com}}")); !errors.Is(err, ErrTime) {
		t.Errorf("without time: %v", err)
	}
}

// TestLargest_NoSuchDevice_OnlyGPUsAreKnown asks for models that an autoscaler can add.
func TestLargest_NoSuchDevice_OnlyGPUsAreKnown(t *testing.T) {
	c, _ := newCounter(t, "hgx-h100")
	got, err := c.Largest(t.Context(), devices(t, "- {name: r, exactly: {deviceClassName: nvidia-absent.nvidia.com, count: 2}}"))
	if err != nil || got.MilliGPUs != 2000 || got.Unknown == "" || got.UnknownGPUs {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.Largest(t.Context(), devices(t, "- {name: r, exactly: {deviceClassName: nvlink-16.gpu.nvidia.com}}")); err != nil || !got.UnknownGPUs {
		t.Errorf("%+v, %v", got, err)
	}
	// Devices of any driver have the attributes of Kubernetes.
	root := "- {name: r, exactly: {deviceClassName: any.example.com, selectors: [{cel: {expression: \"device.attributes['resource.kubernetes.io'].pcieRoot == 'pci9999:00'\"}}]}}"
	if got, err := c.Largest(t.Context(), devices(t, root)); err != nil || !got.UnknownGPUs {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAllocated_Devices_CostTheirSize(t *testing.T) {
	c, in := newCounter(t, "hgx-h100", "l40s-4")
	result := func(device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: "gpu.nvidia.com", Pool: "n0/gpu", Device: device}
	}
	first := ""
	for _, s := range in["n0/gpu"].Slices {
		for i, d := range s.Shape.Spec.Devices {
			if s.Shape.Kinds[i].Type == gpu.KindGPU && first == "" {
				first = d.Name
			}
		}
	}
	share, admin := result(first), result(first)
	share.ShareID, share.ConsumedCapacity = new(types.UID("s")), map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("8Gi"), "compute": resource.MustParse("25")}
	admin.AdminAccess = new(true)
	other := result(first)
	other.Driver = "nic.example.com"
	allocated := func(all ...resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocationResult {
		return &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: all}}
	}
	for name, w := range map[string]struct {
		of         *resourceapi.AllocationResult
		milli, mib int64
	}{
		"a GPU":          {allocated(result(first)), 1000, 81559},
		"a partition":    {allocated(result(first + "-mig-1g-10gb-0")), 125, 9856},
		"two":            {allocated(result(first), result(first+"-mig-3g-40gb-0")), 1500, 81559 + 40448},
		"a share":        {allocated(share), 250, 8192},
		"admin access":   {allocated(admin), 0, 0},
		"another driver": {allocated(other), 0, 0},
	} {
		got, ok := c.Allocated(w.of, in)
		if !ok || got.MilliGPUs != w.milli || got.Bytes != w.mib*mib {
			t.Errorf("%s costs %d/1000 GPUs and %d MiB (%v), want %d and %d", name, got.MilliGPUs, got.Bytes/mib, ok, w.milli, w.mib)
		}
	}
	for _, r := range []resourceapi.DeviceRequestAllocationResult{result("gone"), {Driver: "gpu.nvidia.com", Pool: "n9/gpu", Device: first}} {
		if _, ok := c.Allocated(allocated(r), in); ok {
			t.Errorf("the size of %s in %s is known", r.Device, r.Pool)
		}
	}
}

func TestPod_ExtendedResources_CostLikeClaims(t *testing.T) {
	c, _ := newCounter(t, "hgx-h100")
	container := func(name string, n string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(n), "cpu": resource.MustParse("1")}}}
	}
	sidecar := container("nvidia.com/gpu", "1")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	for name, w := range map[string]struct {
		pod   corev1.PodSpec
		milli int64
	}{
		"none":           {corev1.PodSpec{Containers: []corev1.Container{container("example.com/nic", "1")}}, 0},
		"containers":     {corev1.PodSpec{Containers: []corev1.Container{container("nvidia.com/gpu", "2"), container("nvidia.com/gpu", "1")}}, 3000},
		"a class":        {corev1.PodSpec{Containers: []corev1.Container{container("deviceclass.resource.kubernetes.io/mig-1g.10gb.nvidia.com", "2")}}, 250},
		"init container": {corev1.PodSpec{InitContainers: []corev1.Container{container("nvidia.com/gpu", "4")}, Containers: []corev1.Container{container("nvidia.com/gpu", "1")}}, 4000},
		"sidecar":        {corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container("nvidia.com/gpu", "1")}}, 2000},
		"init container after a sidecar": {corev1.PodSpec{
			InitContainers: []corev1.Container{sidecar, container("nvidia.com/gpu", "2")}, Containers: []corev1.Container{container("nvidia.com/gpu", "1")},
		}, 3000},
		"init container with another resource": {corev1.PodSpec{
			InitContainers: []corev1.Container{container("nvidia.com/gpu", "1")},
			Containers:     []corev1.Container{container("deviceclass.resource.kubernetes.io/mig-1g.10gb.nvidia.com", "2")},
		}, 1250},
	} {
		if got, err := c.Pod(t.Context(), w.pod); err != nil || got.MilliGPUs != w.milli {
			t.Errorf("%s: %d/1000 GPUs (%v), want %d", name, got.MilliGPUs, err, w.milli)
		}
	}
}

// lister lists classes in the order of the slice, or fails.
type lister struct {
	classes []*resourceapi.DeviceClass
	err     error
}

func (l lister) List(labels.Selector) ([]*resourceapi.DeviceClass, error) { return l.classes, l.err }

func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, c := range l.classes {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, errors.New("not found")
}

func TestPod_RandomClasses_CostsLikeTheSchedulersClass(t *testing.T) {
	pools := nodes(t, "hgx-h100")
	evaluator := ask.NewEvaluator()
	for seed := range seedtest.Each(t, 60) {
		classes := selectortest.Classes(rand.New(rand.NewPCG(seed, 3)))
		c := NewCounter("gpu.nvidia.com", ask.Asker{Evaluator: evaluator, Classes: lister{classes: classes}}, pools)
		for _, name := range selectortest.Resources(classes) {
			var want Charge
			if class := selectortest.Scheduled(classes, name); class != nil {
				var err error
				if want, err = c.Largest(t.Context(), devices(t, "- {name: r, exactly: {deviceClassName: "+class.Name+"}}")); err != nil {
					t.Fatal(err)
				}
			}
			got, err := c.Pod(t.Context(), corev1.PodSpec{Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}},
			}}})
			if err != nil || got.MilliGPUs != want.MilliGPUs || got.Bytes != want.Bytes {
				t.Fatalf("seed %d: a pod with %s costs %d/1000 GPUs (%v), want %d", seed, name, got.MilliGPUs, err, want.MilliGPUs)
			}
		}
	}
}

func TestPod_ClassesUnreadable_ReturnsError(t *testing.T) {
	c := NewCounter("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: lister{err: errors.New("not read yet")}}, nodes(t, "hgx-h100"))
	got, err := c.Pod(t.Context(), corev1.PodSpec{Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
	}}})
	if err == nil {
		t.Errorf("it costs %d/1000 GPUs, but the classes are unknown", got.MilliGPUs)
	}
}
