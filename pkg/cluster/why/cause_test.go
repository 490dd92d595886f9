// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

var errForbidden = errors.New("forbidden")

// TestAsk_AskedForTooMuch_CureIsTheSmallestChange has a cluster of two H100, of 79.6Gi each.
func TestAsk_AskedForTooMuch_CureIsTheSmallestChange(t *testing.T) {
	memory := func(amount string) func(*resourceapi.ExactDeviceRequest) {
		return func(q *resourceapi.ExactDeviceRequest) {
			q.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)}}
		}
	}
	for name, c := range map[string]struct {
		asked     *resourceapi.ResourceClaim
		held      []string
		want, not string
	}{
		"80Gi": {claim("asked", gpus, 1, memory("80Gi")), nil, "ask for 79Gi of memory instead of 80Gi; at once it fits on n1", ""},
		"more than the free part of each GPU": {
			claim("asked", gpus, 1, memory("60Gi")), []string{"50Gi", "30Gi"}, "ask for 49Gi of memory instead of 60Gi; at once it fits on n1", "",
		},
		"a part of a Gi": {
			claim("asked", gpus, 1, memory("60Gi")), []string{"79Gi", "79Gi"}, "ask for 663Mi of memory instead of 60Gi; at once it fits on n1", "",
		},
		"nine GPUs": {claim("asked", gpus, 9), nil, "ask for 2 instead of 9", "use the class"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", "hgx-h100", 2)
			for i, amount := range c.held {
				if !e.Start(claim(fmt.Sprint("held-", i), gpus, 1, memory(amount)), "n1") {
					t.Fatalf("no room for %s", amount)
				}
			}
			answer := e.ask(why.Subject{Claim: c.asked})
			e.check(answer, []*resourceapi.ResourceClaim{c.asked})
			if text := answer.String(); !strings.Contains(text, c.want) || c.not != "" && strings.Contains(text, c.not) {
				t.Errorf("no line %q, or a line %q:\n%s", c.want, c.not, text)
			}
		})
	}
}

// TestAsk_GPUsHeld_AreCounted has nodes of two and of four GPUs.
func TestAsk_GPUsHeld_AreCounted(t *testing.T) {
	group := func(e *env) string {
		c := e.Classes[0].DeepCopy()
		c.Name = "nvlink.gpu.nvidia.com"
		c.Spec.Selectors = selectors(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "nvlink-group"`)
		e.Classes = append(e.Classes, c)
		return c.Name
	}
	for name, c := range map[string]struct {
		hold      func(e *env)
		held, all int
	}{
		"whole GPUs": {func(e *env) {
			e.Start(claim("a", gpus, 1), "n1")
			e.Start(claim("b", gpus, 3), "n2")
		}, 4, 6},
		"partitions of one GPU": {func(e *env) {
			e.Start(claim("a", small, 2), "n1")
			e.Start(claim("b", gpus, 4), "n2")
		}, 5, 6},
		"a group": {func(e *env) {
			e.Start(claim("a", gpus, 1), "n1")
			e.Start(claim("b", group(e), 1), "n2")
		}, 5, 6},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", "hgx-h100", 2)
			e.node(t, "n2", "hgx-h100", 4)
			c.hold(e)
			asked := claim("asked", gpus, 2)
			asked.Spec.Devices.Requests[0].Exactly.AllocationMode, asked.Spec.Devices.Requests[0].Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
			answer := e.ask(why.Subject{Claim: asked})
			if answer.HeldGPUs != c.held || answer.GPUs != c.all || len(e.Claims) != 2 {
				t.Errorf("%d of %d GPUs are held, want %d of %d:\n%s", answer.HeldGPUs, answer.GPUs, c.held, c.all, answer)
			}
		})
	}
}

// TestAsk_ThingMissing_NamesTheCause has states of a cluster in which an answer by absence would be false.
func TestAsk_ThingMissing_NamesTheCause(t *testing.T) {
	waiting := func(e *env, class string, change ...func(*resourceapi.ExactDeviceRequest)) *corev1.Pod {
		c := claim("asked", class, 1, change...)
		e.Claims = append(e.Claims, c)
		p := pod("p", c)
		p.UID = "p"
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "asked"}}}}}
		return p
	}
	limits := func(name corev1.ResourceName) *corev1.Pod {
		p := pod("p")
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}}}}
		return p
	}
	template := func(name string) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
	}
	without := func(e *env, class string) {
		kept := e.Classes[:0]
		for _, c := range e.Classes {
			if c.Name != class {
				kept = append(kept, c)
			}
		}
		e.Classes = kept
	}
	condition := func(p *corev1.Pod, message string) *corev1.Pod {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}
		return p
	}
	for name, c := range map[string]struct {
		profile string
		subject func(e *env) why.Subject
		result  why.Result
		lines   []string
		not     []string
	}{
		"template missing": {"hgx-h100", func(e *env) why.Subject {
			p := pod("p")
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{`ResourceClaimTemplate t does not exist in namespace "team-a"; create it`}, []string{"fits on"}},
		"a template where a claim is named": {"hgx-h100", func(e *env) why.Subject {
			p := pod("p")
			e.Templates = append(e.Templates, template("gpu-one"))
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu-one")}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"ResourceClaim gpu-one does not exist in namespace \"team-a\"; a ResourceClaimTemplate of this name does: write resourceClaimTemplateName"}, nil},
		"a claim where a template is named": {"hgx-h100", func(e *env) why.Subject {
			p := pod("p")
			e.Claims = append(e.Claims, claim("gpu-one", "gpu.nvidia.com", 1))
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu-one")}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"; a ResourceClaim of this name does: write resourceClaimName"}, nil},
		"a misspelled template": {"hgx-h100", func(e *env) why.Subject {
			p := pod("p")
			e.Templates = append(e.Templates, template("gpu-one"), template("other"))
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu-onee")}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"; create it, or is gpu-one meant?"}, nil},
		"a misspelled extended resource": {"hgx-h100", func(e *env) why.Subject {
			e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
			return why.Subject{Pod: limits("nvidia.com/gpus")}
		}, why.Waits, []string{"no node has a device plugin for it; is nvidia.com/gpu meant?"}, nil},
		"shares that no node renames": {"hgx-h100", func(*env) why.Subject { return why.Subject{Pod: limits("nvidia.com/mig-1g.10gb.shared")} },
			why.Waits, []string{"no node has a device plugin for it; nodes offer it by replicas with renameByDefault in sharing.config"}, []string{"no GPU of the cluster has"}},
		"an extended resource like no other": {"hgx-h100", func(e *env) why.Subject {
			e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
			return why.Subject{Pod: limits("nvidia.com/hostdev")}
		}, why.Waits, []string{"no node has a device plugin for it"}, []string{"meant"}},
		"HAMi's memory": {"hgx-h100", func(*env) why.Subject { return why.Subject{Pod: limits("nvidia.com/gpumem")} },
			why.Waits, []string{"; HAMi's limits need the chart value podShares"}, nil},
		"class of a profile that no GPU has": {"hgx-h100", func(e *env) why.Subject { return why.Subject{Pod: waiting(e, "mig-2g.24gb.nvidia.com")} },
			why.Waits, []string{
				"  - request gpu: no GPU of the cluster has the MIG profile 2g.24gb (its profiles are 1g.10gb, 1g.10gb+me, 1g.20gb",
				"; the nearest is 3g.40gb, with the DeviceClass mig-3g.40gb.nvidia.com)",
				"), so there is no DeviceClass mig-2g.24gb.nvidia.com",
			}, []string{"note: request gpu: there is no DeviceClass"}},
		"class of a profile while no node publishes partitions": {"a30", func(e *env) why.Subject {
			without(e, medium)
			return why.Subject{Pod: waiting(e, medium)}
		}, why.Waits, []string{
			"  - request gpu: no node publishes partitions, though GPUs have MIG (chart value publish), so there is no DeviceClass mig-3g.40gb.nvidia.com",
		}, nil},
		"class of a profile that GPUs have": {"hgx-h100", func(e *env) why.Subject { return why.Subject{Pod: waiting(e, "mig-1g.10gb.me.nvidia.com")} },
			why.Waits, []string{
				`request gpu: DeviceClass "mig-1g.10gb.me.nvidia.com" does not exist`, "note: request gpu: there is no DeviceClass mig-1g.10gb.me.nvidia.com",
			}, []string{"no GPU of the cluster"}},
		"class of a profile on a model without MIG": {"l40s-4", func(e *env) why.Subject {
			without(e, medium)
			return why.Subject{Pod: waiting(e, medium)}
		}, why.Waits, []string{"  - request gpu: no GPU of the cluster has MIG, so there is no DeviceClass mig-3g.40gb.nvidia.com"}, nil},
		"any partition on a model without MIG": {"l40s-4", func(e *env) why.Subject { return why.Subject{Pod: waiting(e, whytest.AnyMIG)} },
			why.Waits, []string{"  - request gpu: no GPU of the cluster has MIG"}, nil},
		"any partition where GPUs have MIG": {"hgx-h100", func(e *env) why.Subject { return why.Subject{Pod: waiting(e, whytest.AnyMIG)} },
			why.Fits, nil, []string{"has MIG"}},
		"partition on a model without MIG": {"l40s-4", func(e *env) why.Subject { return why.Subject{Pod: waiting(e, small)} },
			why.Waits, []string{"no GPU of the cluster has MIG"}, nil},
		"resource of a profile on a model without MIG": {"l40s-4", func(*env) why.Subject { return why.Subject{Pod: limits("nvidia.com/mig-1g.10gb")} },
			why.Waits, []string{"  - no GPU of the cluster has MIG, so nothing serves nvidia.com/mig-1g.10gb"}, []string{"only a device plugin can serve it"}},
		"resource that nothing serves": {"hgx-h100", func(*env) why.Subject { return why.Subject{Pod: limits("nvidia.com/gpu")} },
			why.Waits, []string{"  - no DeviceClass has the extendedResourceName nvidia.com/gpu, and no node has a device plugin for it"}, nil},
		"resource of a device plugin": {"hgx-h100", func(e *env) why.Subject {
			e.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			return why.Subject{Pod: limits("nvidia.com/gpu")}
		}, why.Settled, []string{"pod team-a/p asks for no device through DRA.", "only a device plugin can serve it"}, nil},
		"attribute typo": {"hgx-h100", func(e *env) why.Subject {
			return why.Subject{Pod: waiting(e, gpus, func(q *resourceapi.ExactDeviceRequest) {
				q.Selectors = selectors(`device.attributes["gpu.nvidia.com"].productname == "NVIDIA H100 80GB HBM3"`)
			})}
		}, why.Waits, []string{"write productName"}, nil},
		"wrong domain": {"hgx-h100", func(e *env) why.Subject {
			return why.Subject{Pod: waiting(e, gpus, func(q *resourceapi.ExactDeviceRequest) {
				q.Selectors = selectors(`device.attributes["nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`)
			})}
		}, why.Waits, []string{"gpu.nvidia.com"}, nil},
		"another driver is missing": {"hgx-h100", func(e *env) why.Subject {
			e.Classes = append(e.Classes, &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{Selectors: selectors(`device.driver == "nic.example.com"`)},
			})
			p := waiting(e, gpus)
			e.Claims[0].Spec.Devices.Requests = append(e.Claims[0].Spec.Devices.Requests, claim("x", "nic", 1).Spec.Devices.Requests[0])
			e.Claims[0].Spec.Devices.Requests[1].Name = "nic"
			return why.Subject{Pod: p}
		}, why.Waits, []string{"request nic: the driver nic.example.com publishes no devices in this cluster"}, nil},
		"plugin gone, claims left": {"hgx-h100", func(e *env) why.Subject {
			e.Start(claim("train-0", gpus, 1), "n1")
			e.Slices = nil
			return why.Subject{Pod: waiting(e, gpus)}
		}, why.Waits, []string{"publishes no devices now, though claims have devices of it: its plugin or NVIDIA's driver does not run"}, []string{"could satisfy", "cannot be shared"}},
		"no plugin at all": {"hgx-h100", func(e *env) why.Subject {
			e.Slices = nil
			return why.Subject{Pod: waiting(e, gpus, func(q *resourceapi.ExactDeviceRequest) {
				q.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
			})}
		}, why.Waits, []string{"publishes no devices", "no node publishes devices of gpu.nvidia.com, so the requests could not be compared with any"},
			[]string{"could satisfy", "cannot be shared", "no device of the cluster"}},
		"no container names the claim": {"hgx-h100", func(e *env) why.Subject {
			p := waiting(e, gpus)
			p.Spec.Containers[0].Resources.Claims = nil
			return why.Subject{Pod: p}
		}, why.Fits, []string{"note: no container names asked in resources.claims, so none gets its devices"}, nil},
		"CPU": {"hgx-h100", func(e *env) why.Subject {
			return why.Subject{Pod: condition(waiting(e, gpus), "0/1 nodes are available: 1 Insufficient cpu.")}
		}, why.Free, []string{"pod team-a/p: its devices are free on n1, but the scheduler reports other reasons.", "1 Insufficient cpu"}, []string{"fits on n1 now"}},
		"a volume": {"hgx-h100", func(e *env) why.Subject {
			return why.Subject{Pod: condition(waiting(e, gpus), `0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.`)}
		}, why.Free, []string{"but the scheduler reports other reasons", "unbound immediate PersistentVolumeClaims"}, []string{"fits on n1 now"}},
		"a quota refuses the scheduler's claim": {"hgx-h100", func(e *env) why.Subject {
			e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
			return why.Subject{Pod: condition(limits("nvidia.com/gpu"), `create claim for extended resources: resourceclaims is forbidden: exceeded quota: none`)}
		}, why.Free, []string{"but the scheduler reports other reasons", "exceeded quota: none"}, []string{"fits on n1 now"}},
		"a scheduling gate": {"hgx-h100", func(e *env) why.Subject {
			p := waiting(e, gpus)
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/hold"}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"the pod has the scheduling gate example.com/hold"}, []string{"fits on"}},
		"classes were not read": {"hgx-h100", func(e *env) why.Subject {
			e.Classes = nil
			e.States = read.States{read.DeviceClasses: errForbidden}
			return why.Subject{Pod: waiting(e, gpus)}
		}, why.Undecided, []string{"pod team-a/p: undecided, because DeviceClasses could not be read."}, []string{"does not exist", "there is no DeviceClass"}},
		"slices were not read": {"hgx-h100", func(e *env) why.Subject {
			e.Slices = nil
			e.States = read.States{read.ResourceSlices: errForbidden}
			return why.Subject{Pod: waiting(e, gpus)}
		}, why.Undecided, []string{"pod team-a/p: undecided, because ResourceSlices could not be read."}, []string{"0 of", "no node", "no GPU"}},
		"slices were not read, and a resource is asked for": {"hgx-h100", func(e *env) why.Subject {
			e.Slices = nil
			e.States = read.States{read.ResourceSlices: errForbidden}
			return why.Subject{Pod: limits("nvidia.com/mig-1g.10gb")}
		}, why.Undecided, nil, []string{"no GPU of the cluster has MIG"}},
		"claims of others were not read": {"hgx-h100", func(e *env) why.Subject {
			e.States = read.States{read.ResourceClaims: errForbidden}
			return why.Subject{Pod: waiting(e, gpus)}
		}, why.Fits, []string{"pod team-a/p fits on n1 now, unless claims that could not be read hold the devices."}, nil},
		"Events were not read": {"hgx-h100", func(e *env) why.Subject {
			e.States = read.States{read.Events: errForbidden}
			return why.Subject{Pod: waiting(e, gpus)}
		}, why.Fits, []string{"note: the pod's Events could not be read, so refused claims and failures of its node are not considered"}, nil},
		"the template was not read": {"hgx-h100", func(e *env) why.Subject {
			e.States = read.States{read.ResourceClaimTemplates: errForbidden}
			p := pod("p")
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
			return why.Subject{Pod: p}
		}, why.Undecided, []string{"ResourceClaimTemplate t could not be read"}, []string{"does not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", c.profile, 2)
			answer := e.ask(c.subject(e))
			text := answer.String()
			if answer.Result != c.result {
				t.Errorf("the result is %s, want %s", answer.Result, c.result)
			}
			for _, line := range c.lines {
				if !strings.Contains(text, line) {
					t.Errorf("no line %q", line)
				}
			}
			for _, line := range c.not {
				if strings.Contains(text, line) {
					t.Errorf("the line %q is false", line)
				}
			}
			t.Log("\n" + text)
		})
	}
}
