// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/pkg/wire"
)

var update = flag.Bool("update", false, "write the golden files again")

func published(t testing.TB, board, node string, gpus int) []*resourceapi.ResourceSlice {
	t.Helper()
	out, err := slicetest.Node(board, node, gpus)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func objects(published []*resourceapi.ResourceSlice, claims ...resourceapi.ResourceClaim) view.Objects {
	o, shapes := view.Objects{Driver: slicetest.Driver, Claims: claims}, &pool.Shapes{}
	for _, s := range published {
		o.Slices = append(o.Slices, shapes.Convert(s.DeepCopy()))
	}
	return o
}

func claim(name string, pods int, results ...resourceapi.DeviceRequestAllocationResult) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
	}}
	for range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name})
	}
	return c
}

func device(node, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Driver: slicetest.Driver, Pool: node + "/gpu", Device: name}
}

func share(node, name, id, memory string) resourceapi.DeviceRequestAllocationResult {
	r := device(node, name)
	r.ShareID = ptr.To(types.UID(id))
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	return r
}

func taint(all []*resourceapi.ResourceSlice, device, value string) {
	for _, s := range all {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; strings.HasPrefix(d.Name, device) {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: value, Effect: "NoSchedule"})
			}
		}
	}
}

// busy is a board with a GPU in each state, and one without MIG.
func busy(t testing.TB) view.Objects {
	all := published(t, "hgx-h100", "n1", 0)
	taint(all, "gpu-0000-d1-00-0", "lost")
	admin := device("n1", "monitor-0000-1b-00-0")
	admin.Pool, admin.AdminAccess = "n1/monitor", ptr.To(true)
	o := objects(append(all, published(t, "l40s-4", "n2", 2)...),
		claim("train", 1, device("n1", "nvlink-2-0000-52-00-0")),
		claim("a", 1, device("n1", "gpu-0000-1b-00-0-mig-3g-40gb-4"), device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-0")),
		claim("b", 3, share("n1", "gpu-0000-43-00-0", "1", "20Gi")),
		claim("c", 0, share("n1", "gpu-0000-43-00-0", "2", "40Gi")),
		claim("watch", 1, admin),
		claim("two", 1, share("n2", "gpu-0000-38-00-0", "3", "12Gi")),
		claim("lost", 1, device("n3", "gpu-0000-01-00-0")),
	)
	o.Rules = []resourceapi.DeviceTaintRule{{Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(slicetest.Driver), Pool: ptr.To("n1/gpu"), Device: ptr.To("gpu-0000-c3-00-0")},
		Taint:          resourceapi.DeviceTaint{Key: wire.CordonTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}}
	return o
}

func TestDrawing_BusyBoard_MatchesGolden(t *testing.T) {
	for file, d := range map[string]view.Drawing{"testdata/layout-80.txt": {Width: 80}, "testdata/layout-40.txt": {Width: 40}} {
		var out strings.Builder
		for _, n := range view.Nodes(busy(t)) {
			out.WriteString(d.Node(n))
		}
		for _, line := range strings.Split(out.String(), "\n") {
			if utf8.RuneCountInString(line) > d.Width {
				t.Errorf("%s: line of more than %d columns: %q", file, d.Width, line)
			}
		}
		if *update {
			if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s (-want +got), go test -update writes it:\n%s", file, diff)
		}
	}
}

func TestDrawing_Colours_ChangeNoText(t *testing.T) {
	for _, n := range view.Nodes(busy(t)) {
		plain, colours := view.Drawing{Width: 60}.Node(n), view.Drawing{Width: 60, Colours: true}.Node(n)
		if plain == colours {
			t.Errorf("node %s has no colours", n.Name)
		}
		for _, code := range []string{"31", "32", "33", "34", "35", "36", "0"} {
			colours = strings.ReplaceAll(colours, "\x1b["+code+"m", "")
		}
		if plain != colours {
			t.Errorf("colours change the text:\n%s", cmp.Diff(plain, colours))
		}
	}
}

// TestCondition_HeldGroupWithUnpublishedMember_Unknown leaves out the devices of a member, but not the group.
func TestCondition_HeldGroupWithUnpublishedMember_Unknown(t *testing.T) {
	const member = "gpu-0000-52-00-0"
	all := published(t, "hgx-h100", "n1", 0)
	for i, s := range all {
		s = s.DeepCopy()
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return strings.HasPrefix(d.Name, member) })
		all[i] = s
	}
	for _, g := range view.Nodes(objects(all, claim("train", 1, device("n1", "nvlink-2-0000-52-00-0"))))[0].GPUs {
		want := "ok"
		if g.Name == member {
			want = "unknown"
		}
		if got := g.Condition(); got != want {
			t.Errorf("GPU %s (%s): condition %q, want %q", g.Name, g.Use, got, want)
		}
	}
}

// TestNodes_SampleOnAnotherNode_LooksLikeASampleNode has two nodes that no object asks for partitions of. One publishes a
// placement of each profile, and the other whole GPUs alone.
func TestNodes_SampleOnAnotherNode_LooksLikeASampleNode(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: Auto, monitors: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", "n", 0)
	if err != nil {
		t.Fatal(err)
	}
	plain := slicetest.Slices(scanned, "n1", settings, func(o *resourceslices.Options) {
		o.Sharing = sharing.Node{Name: "n1", Settings: settings, MPS: true, Demand: sharingtest.NoDemand{Elsewhere: true}}
	})
	sample := func(name string) []*resourceapi.ResourceSlice { return slicetest.Slices(scanned, name, settings) }
	held := claim("c", 1, device("n1", "gpu-0000-1b-00-0"))
	want := view.Nodes(objects(sample("n1"), held))[0]
	got := view.Nodes(objects(slices.Concat(plain, sample("n2")), held))[0]
	for i := range want.GPUs { // The node does not publish these.
		want.GPUs[i].Devices = got.GPUs[i].Devices
	}
	if diff := cmp.Diff(want, got); diff != "" || got.GPUs[0].MemorySlices != 8 {
		t.Errorf("(-sample node +another node)\n%s", diff)
	}
	if n := len(got.GPUs[0].Devices); n != 1 {
		t.Errorf("%d devices are published, want one", n)
	}
	if alone := view.Nodes(objects(plain))[0]; alone.GPUs[0].MemorySlices != 0 {
		t.Errorf("without a sample: %+v", alone.GPUs[0])
	}
}

func TestFind_NoNode_NeedsOneNode(t *testing.T) {
	one := view.Nodes(objects(published(t, "hgx-h100", "n1", 0)))
	if found, err := view.Find(one, "gpu-0000-1b-00-0"); err != nil || len(found) != 1 || found[0].Node != "n1" {
		t.Errorf("%v, %v", found, err)
	}
	two := view.Nodes(objects(append(published(t, "hgx-h100", "n1", 0), published(t, "hgx-h100", "n2", 0)...)))
	if found, err := view.Find(two, "gpu-0000-1b-00-0"); err == nil || !strings.Contains(err.Error(), "has no node") {
		t.Errorf("%v, %v", found, err)
	}
}

func TestNodes_PoolHalfWritten_Incomplete(t *testing.T) {
	all := published(t, "hgx-h100", "n1", 2)
	if nodes := view.Nodes(objects(all)); nodes[0].Incomplete || len(nodes[0].GPUs) != 2 {
		t.Errorf("complete pool: %+v", nodes[0])
	}
	nodes := view.Nodes(objects(all[1:]))
	if !nodes[0].Incomplete {
		t.Error("a slice is missing, and the node is complete")
	}
	for _, g := range nodes[0].GPUs {
		if g.Available() || g.FreeBytes() != 0 || g.Condition() != "slices missing" {
			t.Errorf("%s is available: %v, with %d bytes, and %s", g.Name, g.Available(), g.FreeBytes(), g.Condition())
		}
	}
}

// FuzzNodes reads slices and claims that no driver of this project writes.
func FuzzNodes(f *testing.F) {
	for _, s := range published(f, "hgx-h100", "n1", 1) {
		slice, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		held, err := json.Marshal(claim("a", 1, share("n1", "gpu-0000-1b-00-0", "1", "1Gi"), device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-6")))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(slice, held, 40)
	}
	f.Add([]byte(`{"spec":{"driver":"gpu.nvidia.com","devices":[{"name":"gpu-0000-1b-00-0","capacity":{"memory":{"value":"-9E"}},`+
		`"consumesCounters":[{"counters":{"memory-slice-31":{"value":"1"},"memory-slice--1":{"value":"1"},"memory-slice-9999":{"value":"1"}}}]}]}}`),
		[]byte(`{"status":{"allocation":{"devices":{"results":[{"driver":"gpu.nvidia.com","device":"gpu-0000-1b-00-0","shareID":"x",`+
			`"consumedCapacity":{"memory":"-1"}},{"driver":"gpu.nvidia.com","device":"gpu-0000-1b-00-0-mig-1g-10gb-200"}]}}}}`), 0)
	f.Fuzz(func(t *testing.T, slice, held []byte, width int) {
		var s resourceapi.ResourceSlice
		var c resourceapi.ResourceClaim
		if json.Unmarshal(slice, &s) != nil || json.Unmarshal(held, &c) != nil {
			return
		}
		o := objects([]*resourceapi.ResourceSlice{&s}, c)
		d := view.Drawing{Width: width % 200}
		for _, n := range view.Nodes(o) {
			for _, line := range strings.Split(d.Node(n), "\n") {
				if utf8.RuneCountInString(line) > max(40, d.Width)+len(n.Groups) && len(n.Groups) < 10 {
					t.Errorf("%d columns: %q", d.Width, line)
				}
			}
			if _, err := json.Marshal(n); err != nil {
				t.Error(err)
			}
		}
		view.Claims(o, nil)
		view.Pods(o)
		view.Pools(o.Slices)
	})
}

// BenchmarkNodes trims the slices of 1,000 nodes as they arrive, and joins them with a claim of every tenth node.
func BenchmarkNodes(b *testing.B) {
	one := published(b, "hgx-h100", "n0", 0)
	for b.Loop() {
		shapes, o := &pool.Shapes{}, view.Objects{Driver: slicetest.Driver}
		for n := range 1000 {
			node := fmt.Sprint("n", n)
			for _, s := range one {
				s = s.DeepCopy()
				s.Spec.NodeName, s.Spec.Pool.Name = &node, strings.Replace(s.Spec.Pool.Name, "n0", node, 1)
				o.Slices = append(o.Slices, shapes.Convert(s))
			}
			if n%10 == 0 {
				o.Claims = append(o.Claims, claim(node, 1, device(node, "gpu-0000-1b-00-0-mig-1g-10gb-0")))
			}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		nodes := view.Nodes(o)
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/join")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(before.HeapAlloc)/(1<<20), "MiB-kept-slices")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB-kept-nodes")
		runtime.KeepAlive(nodes)
		runtime.KeepAlive(o)
	}
}

func TestClaims_Pending_ResolvedThroughSelectors(t *testing.T) {
	class := func(name string, expressions ...string) resourceapi.DeviceClass {
		c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, e := range expressions {
			c.Spec.Selectors = append(c.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
		}
		return c
	}
	classes := []resourceapi.DeviceClass{
		class("ours", `device.driver == "gpu.nvidia.com"`),
		class("alias", `cel.bind(d, device.driver, d == "gpu.nvidia.com")`),
		class("by-attribute", `device.attributes["gpu.nvidia.com"].architecture == "Hopper"`),
		class("any"),
		class("not-gpu.nvidia.com", `device.driver != "gpu.nvidia.com"`),
		class("nic", `device.driver == "nic.example.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`),
		class("invalid", `device.`),
	}
	want := map[string]bool{"ours": true, "alias": true, "by-attribute": true, "any": true}
	var claims []resourceapi.ResourceClaim
	pending := func(name, class string, selectors ...resourceapi.DeviceSelector) {
		c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Selectors: selectors}}}
		claims = append(claims, c)
	}
	for _, c := range classes {
		pending(c.Name, c.Name)
	}
	pending("absent", "absent")
	pending("any-of-nic", "any", class("", `device.driver == "nic.example.com"`).Spec.Selectors...)
	got := map[string]bool{}
	for _, c := range view.Claims(objects(published(t, "hgx-h100", "n1", 1), claims...), classes) {
		got[c.Name] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims that can get a device of the driver (-want +got):\n%s", diff)
	}
}

func TestNodes_RuleWithoutSelector_TaintsNoGPU(t *testing.T) {
	for name, c := range map[string]struct {
		selector *resourceapi.DeviceTaintSelector
		want     string
	}{
		"no selector":    {nil, "ok"},
		"empty selector": {&resourceapi.DeviceTaintSelector{}, "broken:NoSchedule"},
	} {
		o := objects(published(t, "l40s-4", "n1", 1))
		o.Rules = []resourceapi.DeviceTaintRule{{Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: c.selector, Taint: resourceapi.DeviceTaint{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		}}}
		if got := view.Nodes(o)[0].GPUs[0].Condition(); got != c.want {
			t.Errorf("%s: the GPU is %s, want %s", name, got, c.want)
		}
	}
}

// TestCondition_TaintsOfTheDriver_InWords has taints that the plugin sets for annotations of the Node.
func TestCondition_TaintsOfTheDriver_InWords(t *testing.T) {
	for _, c := range []struct {
		key    string
		effect resourceapi.DeviceTaintEffect
		want   string
	}{
		{wire.CordonTaint, resourceapi.DeviceTaintEffectNoSchedule, "cordoned"},
		{wire.CordonTaint, resourceapi.DeviceTaintEffectNoExecute, "drained"},
		{wire.ReservedTaint, resourceapi.DeviceTaintEffectNoSchedule, "reserved"},
	} {
		all := published(t, "l40s-4", "n1", 1)
		for _, s := range all {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: c.key, Effect: c.effect}}
			}
		}
		if got := view.Nodes(objects(all))[0].GPUs[0].Condition(); got != c.want {
			t.Errorf("%s:%s: the GPU is %s, want %s", c.key, c.effect, got, c.want)
		}
	}
}

func TestCondition_WithdrawnPartition_GPUIsHealthy(t *testing.T) {
	all := published(t, "hgx-h100", "n1", 1)
	taint(all, "gpu-0000-1b-00-0-mig-1g-10gb-0", string(resourceslices.NoDemand))
	if got := view.Nodes(objects(all))[0].GPUs[0].Condition(); got != "ok" {
		t.Errorf("the GPU is %s, want ok: no object asks for one of its partitions", got)
	}
}

func TestSummary_ClaimsShareAPartition_CountsItOnce(t *testing.T) {
	const partition = "gpu-0000-1b-00-0-mig-3g-40gb-4"
	o := objects(published(t, "hgx-h100", "n1", 1),
		claim("a", 1, share("n1", partition, "1", "10Gi")), claim("b", 1, share("n1", partition, "2", "10Gi")))
	if got, want := view.Nodes(o)[0].GPUs[0].Summary(), "1 partition"; got != want {
		t.Errorf("the GPU has %s, want %s", got, want)
	}
}

// TestNodes_AdminAccessToGroups_NoGroupHeld has more claims than a drawing has columns.
func TestNodes_AdminAccessToGroups_NoGroupHeld(t *testing.T) {
	var claims []resourceapi.ResourceClaim
	for i := range 50 {
		watched := device("n1", "nvlink-2-0000-1b-00-0")
		watched.AdminAccess = ptr.To(true)
		claims = append(claims, claim(fmt.Sprintf("watch-%d", i), 1, watched))
	}
	n := view.Nodes(objects(published(t, "hgx-h100", "n1", 2), claims...))[0]
	if len(n.Groups) != 0 || n.GPUs[0].Use != view.Free {
		t.Errorf("%d groups are held, and the first GPU is %s; admin access holds none", len(n.Groups), n.GPUs[0].Use)
	}
	for i := range claims { // The scheduler gives a group to one claim only, but the objects come from separate requests.
		claims[i].Status.Allocation.Devices.Results[0].AdminAccess = nil
	}
	_ = view.Drawing{Width: 40}.Node(view.Nodes(objects(published(t, "hgx-h100", "n1", 2), claims...))[0])
}

// TestFindings_PoolIsIncomplete_DeviceIsNotGivenTwice has a claim with a device of the slice that is missing.
func TestFindings_PoolIsIncomplete_DeviceIsNotGivenTwice(t *testing.T) {
	const partition = "gpu-0000-1b-00-0-mig-1g-10gb-0"
	all := slices.DeleteFunc(published(t, "hgx-h100", "n1", 1), func(s *resourceapi.ResourceSlice) bool {
		return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == partition })
	})
	d := view.Diagnosis{Objects: objects(all, claim("a", 1, device("n1", partition)))}
	d.States = read.States{read.ResourceClaims: nil}
	for _, f := range view.Findings(d, []string{"n1"}) {
		if f.Level == view.Problem {
			t.Errorf("%s: %s: %s", f.Level, f.Subject, f.Message)
		}
	}
}

// TestEvictions_Tolerations_OnlyThoseForEverKeepThePod: with seconds, a toleration delays the eviction.
func TestEvictions_Tolerations_OnlyThoseForEverKeepThePod(t *testing.T) {
	all := published(t, "l40s-4", "n1", 1)
	g := view.Nodes(objects(all))[0].GPUs[0]
	tolerating := func(name string, seconds *int64) resourceapi.ResourceClaim {
		r := device("n1", g.Name)
		r.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists, TolerationSeconds: seconds}}
		return claim(name, 1, r)
	}
	o := objects(all, tolerating("ever", nil), tolerating("minute", ptr.To[int64](60)))
	got := g.Evictions(o)
	want := []view.Eviction{{Namespace: "team-a", Pod: "minute", Claim: "minute", Device: g.Name}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// allRead are the states of resources that the user may read.
var allRead = read.States{read.Nodes: nil, read.Pods: nil, read.ResourceClaims: nil, read.DeviceClasses: nil, read.Webhooks: nil}

func TestFindings_NodeWithoutDriver_IsReported(t *testing.T) {
	empty := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}
	d := view.Diagnosis{Objects: objects(nil), CoreNodes: []corev1.Node{empty}}
	d.States = allRead
	got := map[string]view.Level{}
	for _, f := range view.Findings(d, []string{"empty", "absent"}) {
		got[f.Subject] = f.Level
	}
	if diff := cmp.Diff(map[string]view.Level{"empty": view.Warning, "absent": view.Problem}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFindings_ChartWithAnotherName_FindsThePlugin(t *testing.T) {
	plugin := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin", Labels: map[string]string{
			"app.kubernetes.io/name": "gpus", "app.kubernetes.io/component": "kubelet-plugin",
		}},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Image: "registry.example.com/dra-kubelet-plugin:1"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	d := view.Diagnosis{Objects: objects(published(t, "l40s-4", "n1", 1))}
	d.Pods = []corev1.Pod{onHost(plugin)}
	d.CoreNodes, d.States = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}, allRead
	for _, f := range view.Findings(d, []string{"n1"}) {
		if f.Level != view.Info {
			t.Errorf("%s: %s: %s", f.Level, f.Subject, f.Message)
		}
	}
}

// TestFindings_PodsThatEnded_DoNotCount has pods that were evicted, of an older version.
func TestFindings_PodsThatEnded_DoNotCount(t *testing.T) {
	pod := func(component, version string, phase corev1.PodPhase, ready corev1.ConditionStatus) corev1.Pod {
		return onHost(corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: component + version, Labels: map[string]string{
				"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": component, "app.kubernetes.io/version": version,
			}},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		})
	}
	d := view.Diagnosis{Objects: objects(published(t, "l40s-4", "n1", 1))}
	d.Pods = []corev1.Pod{
		pod("kubelet-plugin", "1", corev1.PodFailed, corev1.ConditionFalse), pod("kubelet-plugin", "2", corev1.PodRunning, corev1.ConditionTrue),
		pod("controller", "1", corev1.PodFailed, corev1.ConditionFalse), pod("controller", "2", corev1.PodRunning, corev1.ConditionTrue),
	}
	d.States = read.States{read.Pods: nil}
	found := false
	for _, f := range view.Findings(d, nil) {
		found = found || strings.HasPrefix(f.Message, "1 of 1 pods are ready")
		if strings.Contains(f.Message, "versions") {
			t.Errorf("%s: %s", f.Subject, f.Message)
		}
	}
	if !found {
		t.Error("pods of the controller that ended count")
	}
}
