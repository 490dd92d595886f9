// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/read"
)

// h100Classes are the classes for one GPU with MIG: one of its model and one of each profile.
var h100Classes = []string{
	smallest, "mig-1g.10gb.me.nvidia.com", "mig-1g.20gb.nvidia.com", "mig-2g.20gb.nvidia.com", "mig-3g.40gb.nvidia.com", "mig-4g.40gb.nvidia.com",
	"mig-7g.80gb.nvidia.com", h100Class,
}

func wantClasses(t *testing.T, e *env, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, e.Names("deviceclasses")); diff != "" {
		t.Errorf("classes (-want +got)\n%s", diff)
	}
}

func wantNoWrites(t *testing.T, e *env, why string) {
	t.Helper()
	if w := e.Written(); len(w) > 0 {
		t.Errorf("%s, and there are writes: %v", why, w)
	}
}

func TestReconcileClasses_ModelsAndProfiles_OneClassEach(t *testing.T) {
	at(t, append(machine(t, "hgx-h100", "a", 1), machine(t, "l40s-4", "b", 0)...), func(t *testing.T, e *env, _ *Controller) {
		wantClasses(t, e, append([]string{l40sClass}, h100Classes...)...)
		e.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
		e.Publish("t4-1", "c", 0)
		pass(time.Second)
		wantClasses(t, e, append([]string{l40sClass, t4Class}, h100Classes...)...)
		oneSlice := get[resourceapi.DeviceClass](e, "deviceclasses", smallest)
		if name := oneSlice.Spec.ExtendedResourceName; name == nil || *name != "nvidia.com/mig-1g.10gb" || oneSlice.Labels[deviceclasses.ManagedBy] != "gpu.nvidia.com" {
			t.Errorf("%+v", oneSlice)
		}
	})
}

func TestReconcileClasses_SliceComesAndGoes_WritesNothing(t *testing.T) {
	at(t, append(machine(t, "hgx-h100", "a", 1), machine(t, "l40s-4", "b", 0)...), func(t *testing.T, e *env, _ *Controller) {
		e.Written()
		for range 5 {
			e.Withdraw("a")
			pass(time.Minute)
			e.Publish("hgx-h100", "a", 1)
			pass(time.Minute)
		}
		pass(2 * grace)
		wantNoWrites(t, e, "a kubelet restarted")
	})
}

func TestReconcileClasses_Restart_WritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "a", 1)...)
		for i := range 3 {
			_, stop := e.start()
			pass(time.Hour)
			stop()
			if i > 0 {
				wantNoWrites(t, e, "nothing changed")
			}
			e.Written()
		}
	})
}

func TestReconcileClasses_TwoLeaders_DoNotUndoEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "a", 1)...)
		_, stopFirst := e.start()
		defer stopFirst()
		_, stopSecond := e.start()
		defer stopSecond()
		pass(time.Minute)
		// Each instance can write an object once before its cache receives the other's write.
		if n, most := len(e.Written()), 2*(len(h100Classes)+1); n > most {
			t.Errorf("%d writes, want at most %d", n, most)
		}
		pass(time.Hour)
		wantNoWrites(t, e, "both instances are done")
		wantClasses(t, e, h100Classes...)
		e.Publish("l40s-4", "b", 0)
		pass(time.Minute)
		if n := len(e.Written()); n > 2 {
			t.Errorf("%d writes for one class", n)
		}
		e.Withdraw("b")
		pass(2 * grace)
		if n := len(e.Written()); n > 2 {
			t.Errorf("%d writes for the end of one class", n)
		}
		wantClasses(t, e, h100Classes...)
	})
}

// invent publishes devices of invented models on a node, 100 in each slice.
func (e *env) invent(node, prefix string, models int) {
	e.T.Helper()
	proto := slicesAt(e.T, "l40s-4", node, 1)[0]
	device := proto.Spec.Devices[0]
	for n := 0; n < models; n += 100 {
		s := proto.DeepCopy()
		s.Name, s.Spec.Pool.ResourceSliceCount = fmt.Sprintf("%s-%s-%05d", node, strings.ToLower(prefix), n), int64((models+99)/100)
		s.Spec.Devices = nil
		for i := n; i < min(n+100, models); i++ {
			d := *device.DeepCopy()
			d.Name = fmt.Sprintf("gpu-%d", i)
			d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprintf("%s %d", prefix, i))}
			s.Spec.Devices = append(s.Spec.Devices, d)
		}
		e.Put(s)
	}
}

// TestReconcileClasses_NodesInventModels_OthersClassesStay has one node publish more models than there can be classes,
// and others publish many each.
func TestReconcileClasses_NodesInventModels_OthersClassesStay(t *testing.T) {
	at(t, append(machine(t, "hgx-h100", "a", 1), machine(t, "l40s-4", "b", 0)...), func(t *testing.T, e *env, c *Controller) {
		honest := append([]string{l40sClass}, h100Classes...)
		e.invent("x", "AAA", 700)
		pass(3 * grace)
		wantClasses(t, e, honest...)
		e.Publish("t4-1", "c", 0)
		pass(time.Second)
		honest = append(honest, t4Class)
		wantClasses(t, e, honest...)
		for i := range 4 {
			e.invent(fmt.Sprintf("y%d", i), fmt.Sprintf("BBB%d", i), 125)
		}
		pass(3 * grace)
		has := e.Names("deviceclasses")
		for _, name := range honest {
			if !slices.Contains(has, name) {
				t.Errorf("the class %s is removed", name)
			}
		}
		if len(has) > 500 {
			t.Errorf("%d classes", len(has))
		}
		e.Written()
		pass(3 * grace)
		wantNoWrites(t, e, "nothing changed")
		cluster, _ := c.Cluster()
		if n := len(cluster.Counts.Devices); n > 2000 {
			t.Errorf("%d kinds in the metrics", n)
		}
		for kind := range cluster.Counts.Devices {
			if strings.HasPrefix(kind.Product, "AAA") {
				t.Fatalf("the metrics have the model %s, which only a faulty node publishes", kind.Product)
			}
		}
	})
}

func TestReconcileClasses_ClassOfSameResourceGone_RefreshesTheOther(t *testing.T) {
	const expression = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`
	chart, newer, other := class("gpu.nvidia.com", expression), class("newer", expression), class("other", `device.driver == "nic.example.com"`)
	for _, c := range []*resourceapi.DeviceClass{chart, newer, other} {
		c.Spec.ExtendedResourceName = new("nvidia.com/gpu")
	}
	at(t, append(machine(t, "l40s-4", "a", 0), chart, newer, other), func(t *testing.T, e *env, _ *Controller) {
		e.Written()
		for name, gone := range map[string]func(){
			"changed": func() {
				c := get[resourceapi.DeviceClass](e, "deviceclasses", "newer")
				c.Spec.ExtendedResourceName = new("example.com/gpu")
				e.Put(c)
			},
			"deleted": func() { e.Remove("deviceclasses", "newer") },
			"gone at once": func() {
				brief := newer.DeepCopy()
				brief.Name = "brief"
				e.Put(brief)
				e.Remove("deviceclasses", "brief")
				e.Remove("deviceclasses", "newer")
			},
		} {
			e.Put(newer)
			pass(time.Minute)
			was := get[resourceapi.DeviceClass](e, "deviceclasses", "gpu.nvidia.com")
			e.Written()
			gone()
			pass(time.Minute)
			if is := get[resourceapi.DeviceClass](e, "deviceclasses", "gpu.nvidia.com"); is.Annotations[refreshed] == was.Annotations[refreshed] {
				t.Errorf("%s: the other class was not refreshed: %v", name, e.Written())
			}
			pass(time.Hour)
			if w := e.Written(); len(w) != 1 {
				t.Errorf("%s: writes %v, want one", name, w)
			}
		}
	})
}

func TestReconcileClasses_ChartsClassDeleted_ComesBackAfterHelmIsDone(t *testing.T) {
	chart := class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`)
	chart.Labels, chart.Spec.ExtendedResourceName = map[string]string{"app.kubernetes.io/managed-by": "Helm"}, new("nvidia.com/gpu")
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, append(machine(t, "l40s-4", "a", 0), chart)...)
		_, stop := e.start(func(o *Options) { o.Classes.GPUs, o.Classes.GPUResource = true, "nvidia.com/gpu" })
		defer stop()
		pass(time.Hour)
		if is := get[resourceapi.DeviceClass](e, "deviceclasses", chart.Name); cmp.Diff(chart.Labels, is.Labels) != "" {
			t.Errorf("the chart's class has the labels %v", is.Labels)
		}
		for range 2 {
			e.Remove("deviceclasses", chart.Name)
			pass(chartLag / 2)
			wantClasses(t, e, l40sClass)
			pass(chartLag)
			wantClasses(t, e, l40sClass, chart.Name)
			if is := get[resourceapi.DeviceClass](e, "deviceclasses", chart.Name); cmp.Diff(chart.Spec, is.Spec) != "" {
				t.Errorf("it comes back as %+v", is.Spec)
			}
		}
		e.Written()
		pass(time.Hour)
		wantNoWrites(t, e, "the class is back")
	})
}

func TestReconcileClasses_AdministratorsClass_LeftAlone(t *testing.T) {
	theirs := class(l40sClass, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`)
	at(t, append(machine(t, "l40s-4", "a", 0), theirs), func(t *testing.T, e *env, _ *Controller) {
		for _, w := range e.Written() {
			if strings.Contains(w, "deviceclasses") {
				t.Errorf("%s, but the class belongs to another program", w)
			}
		}
		if is := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass); len(is.Labels) > 0 || cmp.Diff(theirs.Spec, is.Spec) != "" {
			t.Errorf("it became %+v", is)
		}
		e.Withdraw("a")
		pass(3 * grace)
		wantClasses(t, e, l40sClass)
		e.Publish("l40s-4", "a", 0)
		pass(time.Second)
		e.Remove("deviceclasses", l40sClass)
		pass(time.Second)
		if is := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass); is == nil || is.Labels[deviceclasses.ManagedBy] == "" {
			t.Errorf("theirs is gone, and ours is %+v", is)
		}
	})
}

func TestReconcileClasses_ClassEdited_Restored(t *testing.T) {
	at(t, machine(t, "l40s-4", "a", 0), func(t *testing.T, e *env, _ *Controller) {
		ours := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass)
		edited := ours.DeepCopy()
		edited.Spec.Selectors[0].CEL.Expression = `device.driver == "gpu.nvidia.com"`
		edited.Annotations = map[string]string{"team": "a"}
		e.Put(edited)
		e.Written()
		pass(time.Second)
		is := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass)
		if diff := cmp.Diff(ours.Spec, is.Spec); diff != "" || is.Annotations["team"] != "a" {
			t.Errorf("annotations %v, spec (-want +got)\n%s", is.Annotations, diff)
		}
		if w := e.Written(); len(w) != 1 {
			t.Errorf("writes %v", w)
		}
	})
}

func TestReconcileClasses_ServerDropsExtendedResourceNames_NotWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "a", 1)...)
		e.Stored = func(_ string, o *unstructured.Unstructured) {
			unstructured.RemoveNestedField(o.Object, "spec", "extendedResourceName")
		}
		_, stop := e.start()
		pass(time.Hour)
		if n := len(e.Written()); n != len(h100Classes)+1 {
			t.Errorf("%d writes for %d classes and a node", n, len(h100Classes))
		}
		e.Publish("l40s-4", "b", 0) // The controller reconciles all classes.
		pass(time.Hour)
		if w := e.Written(); len(w) != 1 {
			t.Errorf("writes %v", w)
		}
		stop()
		_, stop = e.start()
		defer stop()
		pass(time.Hour)
		if w := e.Written(); len(w) > 1 {
			t.Errorf("a new controller needs more than one write to notice that the server drops the names: %v", w)
		}
	})
}

func request1(class string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
		{Name: "other", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "other.example.com"}},
		{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}},
	}}}
}

func alternative(class string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "other.example.com"}, {Name: "b", DeviceClassName: class},
	}}}}}
}

func pod(name string, phase corev1.PodPhase, init bool, resources ...string) *corev1.Pod {
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for _, r := range resources {
		c.Resources.Limits[corev1.ResourceName(r)] = resource.MustParse("1")
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: phase}}
	if init {
		p.Spec.InitContainers = []corev1.Container{c}
		return p
	}
	p.Spec.Containers = []corev1.Container{{Name: "first"}, c}
	return p
}

var named = metav1.ObjectMeta{Namespace: "ns", Name: "user"}

// TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse adds one object, which can refer to the class, to more than a
// page of objects that do not.
func TestReconcileClasses_Unwanted_RemovedAfterGraceUnlessInUse(t *testing.T) {
	var crowd []runtime.Object
	for i := range read.PageSize + 1 {
		meta := metav1.ObjectMeta{Namespace: "crowd", Name: fmt.Sprintf("c%d", i)}
		p := pod(meta.Name, corev1.PodPending, false, "cpu")
		p.Namespace = meta.Namespace
		crowd = append(crowd, p, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: request1("gpu.nvidia.com")},
			&resourceapi.ResourceClaimTemplate{ObjectMeta: meta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: alternative("gpu.nvidia.com")}})
	}
	for name, c := range map[string]struct {
		resource string
		user     runtime.Object
		holds    bool
	}{
		"a claim":                      {"resourceclaims", &resourceapi.ResourceClaim{ObjectMeta: named, Spec: request1(smallest)}, true},
		"an alternative of a claim":    {"resourceclaims", &resourceapi.ResourceClaim{ObjectMeta: named, Spec: alternative(smallest)}, true},
		"a template":                   {"resourceclaimtemplates", &resourceapi.ResourceClaimTemplate{ObjectMeta: named, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: request1(smallest)}}, true},
		"an alternative of a template": {"resourceclaimtemplates", &resourceapi.ResourceClaimTemplate{ObjectMeta: named, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: alternative(smallest)}}, true},
		"a pod by the resource's name": {"pods", pod("user", corev1.PodPending, false, "nvidia.com/mig-1g.10gb"), true},
		"an init container":            {"pods", pod("user", corev1.PodPending, true, "nvidia.com/mig-1g.10gb"), true},
		"a pod by the class's name":    {"pods", pod("user", corev1.PodPending, false, "deviceclass.resource.kubernetes.io/"+smallest), true},
		"a pod that has ended":         {"pods", pod("user", corev1.PodSucceeded, false, "nvidia.com/mig-1g.10gb"), false},
		"a pod that wants another":     {"pods", pod("user", corev1.PodPending, false, "nvidia.com/mig-9g.90gb"), false},
		"a claim of another class":     {"resourceclaims", &resourceapi.ResourceClaim{ObjectMeta: named, Spec: request1("mig.nvidia.com")}, false},
		"nothing":                      {"", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(machine(t, "hgx-h100", "a", 1), machine(t, "l40s-4", "b", 0)...)
			if c.user != nil {
				objects = append(append(objects, crowd...), c.user)
			}
			at(t, objects, func(t *testing.T, e *env, _ *Controller) {
				e.Withdraw("a")
				pass(grace - time.Second)
				wantClasses(t, e, append([]string{l40sClass}, h100Classes...)...)
				pass(2 * time.Second)
				if !c.holds {
					wantClasses(t, e, l40sClass)
					return
				}
				wantClasses(t, e, l40sClass, smallest)
				pass(2 * grace)
				wantClasses(t, e, l40sClass, smallest)
				e.Remove(c.resource, "ns/user")
				pass(grace)
				wantClasses(t, e, l40sClass)
			})
		})
	}
}

// TestReconcileClasses_PodAsksForResourceOfSeveral_AllStay has unwanted classes of which a pod could get the same resource.
func TestReconcileClasses_PodAsksForResourceOfSeveral_AllStay(t *testing.T) {
	objects := append(machine(t, "l40s-4", "b", 0), pod("user", corev1.PodPending, false, "nvidia.com/mig-1g.10gb"))
	want := []string{l40sClass}
	for i := range 6 {
		name := fmt.Sprintf("former-%d.nvidia.com", i)
		objects = append(objects, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{deviceclasses.ManagedBy: "gpu.nvidia.com"}},
			Spec:       resourceapi.DeviceClassSpec{ExtendedResourceName: new("nvidia.com/mig-1g.10gb")},
		})
		want = append(want, name)
	}
	at(t, objects, func(t *testing.T, e *env, _ *Controller) {
		pass(2 * grace)
		wantClasses(t, e, want...)
		e.Remove("pods", "ns/user")
		pass(2 * grace)
		wantClasses(t, e, l40sClass)
	})
}

// TestReconcileClasses_StaleClassInUse_ListsOnceInGrace changes slices while the only user of a class without devices is
// a claim, which the cache knows, or a template, which only the API server knows.
func TestReconcileClasses_StaleClassInUse_ListsOnceInGrace(t *testing.T) {
	for name, c := range map[string]struct {
		user runtime.Object
		most int
	}{
		"a claim": {&resourceapi.ResourceClaim{ObjectMeta: named, Spec: request1(t4Class)}, 0},
		"a template": {&resourceapi.ResourceClaimTemplate{
			ObjectMeta: named, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: request1(t4Class)},
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, append(machine(t, "t4-1", "a", 0), c.user), func(t *testing.T, e *env, _ *Controller) {
				e.Withdraw("a")
				pass(grace - time.Second)
				e.ReadRequests()
				for range 20 {
					e.Publish("l40s-4", "b", 0)
					pass(time.Second)
					e.Withdraw("b")
					pass(time.Second)
				}
				lists := 0
				for _, read := range e.ReadRequests() {
					if strings.HasPrefix(read, "list") {
						lists++
					}
				}
				if lists > c.most {
					t.Errorf("%d LISTs in 40 changes, want at most %d", lists, c.most)
				}
				wantClasses(t, e, l40sClass, t4Class)
			})
		})
	}
}

func TestReconcileClasses_ModelReturnsWithinGrace_GraceStartsAgain(t *testing.T) {
	at(t, append(machine(t, "t4-1", "a", 0), machine(t, "l40s-4", "b", 0)...), func(t *testing.T, e *env, _ *Controller) {
		e.Withdraw("a")
		pass(grace / 2)
		e.Publish("t4-1", "a", 0)
		pass(grace)
		e.Withdraw("a")
		pass(grace - time.Minute)
		wantClasses(t, e, l40sClass, t4Class)
		pass(2 * time.Minute)
		wantClasses(t, e, l40sClass)
	})
}

var classResource = schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}

// failures returns errors of an API server, by name.
func failures(name string) map[string]error {
	return map[string]error{
		"conflict":       apierrors.NewConflict(classResource, name, errors.New("modified")),
		"already exists": apierrors.NewAlreadyExists(classResource, name),
		"not found":      apierrors.NewNotFound(classResource, name),
		"server error":   apierrors.NewInternalError(errors.New("etcd is away")),
		"forbidden":      apierrors.NewForbidden(classResource, name, errors.New("no")),
		"no answer":      errors.New("the connection broke"),
		"unavailable":    apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "", classResource, name, "", 0, true),
	}
}

// TestController_ServerFails_Converges makes each verb on each resource fail six times, before or after the server carries
// it out. Meanwhile a model arrives, its class is edited, and the model is removed.
func TestController_ServerFails_Converges(t *testing.T) {
	for _, failing := range []request{
		{Verb: "create", Resource: "deviceclasses"}, {Verb: "update", Resource: "deviceclasses"}, {Verb: "delete", Resource: "deviceclasses"},
		{Verb: "list", Resource: "deviceclasses"}, {Verb: "list", Resource: "resourceslices"}, {Verb: "list", Resource: "nodes"}, {Verb: "watch", Resource: "deviceclasses"}, {Verb: "watch", Resource: "resourceslices"},
		{Verb: "watch", Resource: "nodes"}, {Verb: "watch", Resource: "resourceclaims"}, {Verb: "patch", Resource: "nodes"},
		{Verb: "list", Resource: "resourceclaims"}, {Verb: "list", Resource: "resourceclaimtemplates"}, {Verb: "list", Resource: "pods"},
	} {
		for failure, err := range failures(t4Class) {
			for _, late := range []bool{false, true} {
				if late && !failing.Writes() {
					continue // For a read there is no difference.
				}
				t.Run(fmt.Sprint(failing, " ", failure, " ", late), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { survives(t, failing, err, late) })
				})
			}
		}
	}
}

func survives(t *testing.T, failing request, err error, late bool) {
	e := newEnv(t, machine(t, "l40s-4", "b", 1)...)
	e.Lists = failing.Verb == "list"
	left := 0
	e.Fault = func(r request) (refused, lost error) {
		if r.Verb != failing.Verb || r.Resource != failing.Resource || left == 0 {
			return nil, nil
		}
		left--
		if late {
			return nil, err
		}
		return err, nil
	}
	_, stop := e.start()
	defer stop()
	fail := func() {
		e.Lock()
		defer e.Unlock()
		left = 6
	}
	pass(time.Minute)
	fail()
	for _, o := range machine(t, "t4-1", "a", 0) {
		e.Put(o)
	}
	pass(10 * time.Minute)
	wantClasses(t, e, l40sClass, t4Class)
	if node := get[corev1.Node](e, "nodes", "a"); node.Labels["nvidia.com/gpu.product"] != "Tesla-T4" {
		t.Errorf("labels %v", node.Labels)
	}
	edited := get[resourceapi.DeviceClass](e, "deviceclasses", t4Class)
	if edited == nil {
		return // The error names the missing class.
	}
	want := edited.Spec.DeepCopy()
	edited.Spec.Selectors[0].CEL.Expression = "true"
	fail()
	e.Forget()
	e.Put(edited)
	pass(10 * time.Minute)
	if diff := cmp.Diff(*want, get[resourceapi.DeviceClass](e, "deviceclasses", t4Class).Spec); diff != "" {
		t.Errorf("the class is not restored\n%s", diff)
	}
	fail()
	e.Withdraw("a")
	pass(3 * grace)
	wantClasses(t, e, l40sClass)
	// The plugin's own affinity can depend on one label.
	if node := get[corev1.Node](e, "nodes", "a"); len(node.Labels) != 2 || node.Labels["nvidia.com/gpu.present"] != "true" {
		t.Errorf("a node without devices has the labels %v", node.Labels)
	}
	e.Written()
	pass(time.Hour)
	wantNoWrites(t, e, "nothing changed")
}

// TestReconcileClasses_ClassWithUnshortenedName_StaysWhileInUse has a class from before names were limited to 63 bytes.
func TestReconcileClasses_ClassWithUnshortenedName_StaysWhileInUse(t *testing.T) {
	const product, short = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "nvidia-rtx-pro-6000-blackwell-workstation-c5a144.gpu.nvidia.com"
	long := class("nvidia-rtx-pro-6000-blackwell-workstation-edition.gpu.nvidia.com", `device.driver == "gpu.nvidia.com"`)
	long.Labels = map[string]string{deviceclasses.ManagedBy: "gpu.nvidia.com"}
	objects := append(machine(t, "l40s-4", "a", 0), long, &resourceapi.ResourceClaim{ObjectMeta: named, Spec: request1(long.Name)})
	for _, o := range objects {
		if s, ok := o.(*resourceapi.ResourceSlice); ok {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: new(product)}
			}
		}
	}
	at(t, objects, func(t *testing.T, e *env, _ *Controller) {
		pass(3 * grace)
		wantClasses(t, e, short, long.Name)
		e.Remove("resourceclaims", "ns/user")
		pass(grace)
		wantClasses(t, e, short)
	})
}

// TestWake_ClassOfTheDriver_IsWrittenAgain has another driver's class, which sorts first.
func TestWake_ClassOfTheDriver_IsWrittenAgain(t *testing.T) {
	other := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "a.example.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "a.example.com"`}}},
	}}
	at(t, append(machine(t, "l40s-4", "a", 0), other), func(t *testing.T, e *env, c *Controller) {
		e.Written()
		if err := c.Wake(t.Context()); err != nil {
			t.Fatal(err)
		}
		class := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass)
		if all := e.Written(); len(all) != 1 || class.Annotations[refreshed] == "" {
			t.Errorf("written %q, annotations %v", all, class.Annotations)
		}
	})
	at(t, []runtime.Object{other}, func(t *testing.T, e *env, c *Controller) {
		if err := c.Wake(t.Context()); err == nil || !strings.Contains(err.Error(), "gpu.nvidia.com") {
			t.Errorf("without a class of the driver: %v", err)
		}
	})
}
