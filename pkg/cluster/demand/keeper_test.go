// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/internal/testing/boundedtest"
	"gpu-dra-driver/internal/testing/controllertest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/demand/objects"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
)

const (
	grace     = 10 * time.Minute
	h100Class = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"
	smallest  = "mig-1g.10gb.nvidia.com"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// env is the API server of a test.
type env struct{ *controllertest.Env }

func newEnv(t testing.TB, objects ...runtime.Object) *env {
	return &env{controllertest.New(t, objects...)}
}

func get[T any](e *env, resource, name string) *T {
	return controllertest.Get[T](e.Env, resource, name)
}

type request = controllertest.Request

var (
	machine, pass, autoSlices = controllertest.Machine, controllertest.Pass, controllertest.AutoSlices
	claimOf, podOf, specOf    = controllertest.ClaimOf, controllertest.PodOf, controllertest.SpecOf
)

// keeper returns a controller that does not run yet, and its Keeper.
func (e *env) keeper(o controller.Options, change ...func(*Options)) (*controller.Controller, *Keeper) {
	of := Options{Driver: slicetest.Driver, ConfigMap: "published", Namespace: "ns", SharesOnDemand: true, Grace: grace}
	for _, f := range change {
		f(&of)
	}
	o.OnDemand = true
	cluster := controller.New(slicetest.Driver, e.Client(), o)
	return cluster, New(e.Client(), cluster, of)
}

// start runs a leader until stop is called.
func (e *env) start(change ...func(*Options)) (stop func()) {
	e.T.Helper()
	cluster, k := e.keeper(controller.Options{
		LabelNodes: true, Grace: grace, Auto: []gpu.Kind{gpu.KindGroup, gpu.KindMonitor},
		Classes: deviceclasses.Options{Driver: slicetest.Driver, Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-"},
	}, change...)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{cluster.Observe, cluster.Lead, k.Run} {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				e.T.Error(err)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// atAsked has a test done in a bubble with a controller. restart ends it and starts another.
func atAsked(t *testing.T, objects []runtime.Object, do func(e *env, restart func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, objects...)
		stop := e.start()
		pass(2 * time.Second)
		do(e, func() {
			stop()
			stop = e.start()
			pass(2 * time.Second)
		})
		stop()
	})
}

// asked returns the profiles of the ConfigMap; "none" without one.
func (e *env) asked() string {
	e.T.Helper()
	found := get[corev1.ConfigMap](e, "configmaps", "ns/published")
	if found == nil {
		return "none"
	}
	state, err := demand.Decode(found.Data)
	if err != nil {
		e.T.Error(err)
	}
	return strings.Join(slices.Sorted(maps.Keys(state.Since)), " ")
}

func (e *env) wantAsked(when, want string) {
	e.T.Helper()
	if got := e.asked(); got != want {
		e.T.Errorf("%s: the ConfigMap has %q, want %q", when, got, want)
	}
}

// soon is less than the two seconds that a first pod may wait longer.
const soon = time.Second

func TestAskedKeeper_ObjectAsksForProfile_ConfigMapHasItForAnHour(t *testing.T) {
	for name, object := range map[string]struct {
		runtime.Object
		resource string
	}{
		"pod":   {podOf("p", "nvidia.com/mig-1g.10gb"), "pods"},
		"claim": {claimOf("c", smallest), "resourceclaims"},
		"template": {&resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: specOf(smallest)},
		}, "resourceclaimtemplates"},
	} {
		t.Run(name, func(t *testing.T) {
			atAsked(t, machine(t, "hgx-h100", "n1", 1), func(e *env, restart func()) {
				e.wantAsked("nothing asks", "")
				e.Put(object.Object)
				pass(soon)
				e.wantAsked("an object asks", "1g.10gb")
				pass(3 * time.Hour)
				e.Remove(object.resource, "ns/"+e.Names(object.resource)[0][len("ns/"):])
				pass(50 * time.Minute)
				restart()
				e.wantAsked("nothing asks for less than an hour", "1g.10gb")
				pass(30 * time.Minute)
				e.wantAsked("nothing asks for more than an hour", "")
			})
		})
	}
}

// TestAskedKeeper_ClaimAsksForMonitors_NodesLearnIt has no monitor device published before.
func TestAskedKeeper_ClaimAsksForMonitors_NodesLearnIt(t *testing.T) {
	const class = "monitor.gpu.nvidia.com"
	atAsked(t, machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		e.Put(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "monitor"`}}},
		}})
		e.Put(claimOf("no-access", class))
		pass(soon)
		e.wantAsked("a claim that Prepare refuses", "")
		claim := claimOf("watch", class)
		claim.Spec.Devices.Requests[0].Exactly.AdminAccess = new(true)
		e.Put(claim)
		pass(soon)
		e.wantAsked("a claim asks", demand.Monitors)
	})
}

func TestAskedKeeper_ClaimsOfAllProfiles_FewWritesAndNoOtherProfile(t *testing.T) {
	atAsked(t, machine(t, "hgx-h100", "n1", 2), func(e *env, _ func()) {
		e.Written()
		for i := range 200 {
			e.Put(claimOf(fmt.Sprint("any-", i), smallest))
			c := claimOf(fmt.Sprint("made-up-", i), smallest)
			c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == "1g.%dgb"`, 100+i),
			}}}
			e.Put(c)
			pass(10 * time.Millisecond)
		}
		pass(soon)
		e.wantAsked("many claims", "1g.10gb")
		if writes := e.Written(); len(writes) != 1 {
			t.Errorf("%d writes: %q", len(writes), writes)
		}
	})
}

func TestAskedKeeper_ConfigMapDeletedOrOverwritten_IsWrittenAgain(t *testing.T) {
	atAsked(t, machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		e.Put(claimOf("earlier", "mig-2g.20gb.nvidia.com"))
		pass(soon)
		e.Remove("resourceclaims", "ns/earlier")
		e.Put(claimOf("c", smallest))
		pass(soon)
		e.Remove("configmaps", "ns/published")
		pass(time.Minute)
		e.wantAsked("deleted", "1g.10gb 2g.20gb")
		overwrite := func(content, want string) {
			other := get[corev1.ConfigMap](e, "configmaps", "ns/published")
			other.Data = map[string]string{demand.Key: content}
			e.Put(other)
			pass(time.Minute)
			e.wantAsked("overwritten with "+content, want)
		}
		overwrite("everything", "1g.10gb 2g.20gb")
		overwrite("{}", "1g.10gb")
	})
}

func TestAskedKeeper_WriteFails_IsTriedAgain(t *testing.T) {
	atAsked(t, machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		fails := 2
		e.Fault = func(r request) (refused, lost error) {
			if r.Resource == "configmaps" && r.Writes() && fails > 0 {
				if fails--; fails == 0 {
					return nil, errors.New("connection reset")
				}
				return errors.New("connection refused"), nil
			}
			return nil, nil
		}
		e.Put(claimOf("c", smallest))
		pass(10 * time.Second)
		if e.wantAsked("two failures", "1g.10gb"); fails != 0 {
			t.Errorf("%d failures are left", fails)
		}
	})
}

// TestAskedKeeper_NodesWithoutGroups_ClassesOfGroupsStay has nodes that publish groups only while an object asks for them.
func TestAskedKeeper_NodesWithoutGroups_ClassesOfGroupsStay(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", "n1", 0)
	if err != nil {
		t.Fatal(err)
	}
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	for _, s := range slicetest.Slices(scanned, "n1", settings) {
		objects = append(objects, s)
	}
	atAsked(t, objects, func(e *env, _ func()) {
		pass(2 * grace)
		for _, size := range []string{"2", "4", "8"} {
			if !slices.Contains(e.Names("deviceclasses"), "nvlink-"+size+".gpu.nvidia.com") {
				t.Errorf("no class of groups of %s: %q", size, e.Names("deviceclasses"))
			}
		}
		e.wantAsked("nothing asks", "")
		e.Put(claimOf("c", "nvlink-4.gpu.nvidia.com"))
		pass(soon)
		e.wantAsked("a claim asks", demand.Groups)
		if state, err := demand.Decode(get[corev1.ConfigMap](e, "configmaps", "ns/published").Data); err != nil || state.Nodes != 1 {
			t.Errorf("%+v, %v, want one node", state, err)
		}
	})
}

func TestAskedKeeper_NothingChanges_WritesEachBeat(t *testing.T) {
	atAsked(t, machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		e.Written()
		pass(time.Hour)
		if n := len(e.Written()); n < 15 || n > 20 {
			t.Errorf("%d writes in an hour, want one each %s", n, demand.Beat)
		}
	})
}

// TestAskedKeeper_ForeignWritesOnAClaim_NoPass writes the status and the metadata of a claim again and again, as other
// programs do, and then its requests.
func TestAskedKeeper_ForeignWritesOnAClaim_NoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, claimOf("c", smallest))
		_, k := e.keeper(controller.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		k.follow()
		read.Start(ctx, &wg, k.cluster.Claims, k.templates, k.cluster.Pods)
		woken := func() bool {
			synctest.Wait()
			select {
			case <-k.dirty:
				return true
			default:
				return false
			}
		}
		if !woken() {
			t.Error("the first claim causes no pass")
		}
		claim := claimOf("c", smallest)
		for i := range 200 {
			claim.Annotations = map[string]string{"n": fmt.Sprint(i)}
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: fmt.Sprint(i), UID: "u"}}
			claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: slicetest.Driver, Pool: "p", Device: fmt.Sprint("d", i)}}
			e.Put(claim)
			if woken() {
				t.Fatalf("write %d causes a pass", i)
			}
		}
		claim.Spec = specOf("mig-2g.20gb.nvidia.com")
		if e.Put(claim); !woken() {
			t.Error("another request causes no pass")
		}
		if e.Remove("resourceclaims", "ns/c"); !woken() || len(k.asks.All()) != 0 {
			t.Errorf("after the claim's deletion: %+v", k.asks.All())
		}
	})
}

// TestAskedKeeper_PodGetsANode_NoLongerCounts has pods that stay in the cache with a node, because they lack devices,
// and pods that do not.
func TestAskedKeeper_PodGetsANode_NoLongerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []controller.Options{{Waiting: true}, {Waiting: true, Preemption: true}} {
			e := newEnv(t)
			_, k := e.keeper(o)
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			k.follow()
			read.Start(ctx, &wg, k.cluster.Claims, k.templates, k.cluster.Pods)
			count := func(when string, want int) {
				t.Helper()
				synctest.Wait()
				if all := k.asks.All(); len(all) != want || len(k.unplaced) != want {
					t.Errorf("%+v: %s: %v", o, when, all)
				}
			}
			for _, lacks := range []bool{false, true} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
				limits := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
				pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}
				pod.Status.Phase = corev1.PodPending
				e.Put(pod)
				count("the pod waits", 1)
				pod.Spec.NodeName = "n1"
				if !lacks {
					pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
						ResourceClaimName: "x",
						RequestMappings:   []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu"}},
					}
				}
				e.Put(pod)
				count("it has a node", 0)
				e.Remove("pods", "ns/p")
				count("it is gone", 0)
			}
			cancel()
			wg.Wait()
		}
	})
}

// TestAskedKeeper_ManyClaims_PassDoesNotCountThem compares the work of a pass with few and with many equal claims.
func TestAskedKeeper_ManyClaims_PassDoesNotCountThem(t *testing.T) {
	_, k := newEnv(t).keeper(controller.Options{})
	work := func() float64 { return testing.AllocsPerRun(10, func() { k.asked(t.Context()) }) }
	add := func(claims int) {
		for range claims {
			k.asks.Replace(nil, objects.AsksOf(claimOf("c", smallest), slicetest.Driver))
		}
	}
	add(10)
	few := work()
	if add(100_000); work() > 2*few+10 {
		t.Errorf("a pass over 100,000 claims allocates %v objects, over 10 %v", work(), few)
	}
}

// TestAskedKeeper_LargeClaims_OnlyTheirDevicesCount has a large claim that waits and one with a partition.
func TestAskedKeeper_LargeClaims_OnlyTheirDevicesCount(t *testing.T) {
	atAsked(t, append(machine(t, "hgx-h100", "n1", 0), controllertest.Class("any-partition", controllertest.AnyPartition)), func(e *env, _ func()) {
		e.Put(controllertest.Padded(claimOf("waits", "any-partition"), `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`))
		pass(time.Minute)
		e.wantAsked("a claim waits that cannot be judged", "")
		held := controllertest.Padded(claimOf("held", "any-partition"))
		held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: slicetest.Driver, Pool: "n1/gpu", Device: controllertest.PartitionOf(e.T, "2g-20gb")},
		}}}
		e.Put(held)
		pass(time.Minute)
		e.wantAsked("a large claim has a partition", "2g.20gb")
		e.Put(controllertest.PaddedClass("any-partition", controllertest.AnyPartition))
		e.Put(claimOf("small", "any-partition"))
		pass(time.Minute)
		e.wantAsked("a class cannot be judged", "2g.20gb")
	})
}

// TestInformers_LargestObjects_LittleMemory covers each field of a Keeper that is an informer.
func TestInformers_LargestObjects_LittleMemory(t *testing.T) {
	_, k := newEnv(t).keeper(controller.Options{})
	k.cluster = nil // The controller's own test covers it.
	boundedtest.Check(t, k)
}
