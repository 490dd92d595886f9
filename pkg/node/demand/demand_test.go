// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
)

// askedNode is a node that follows a ConfigMap, in a bubble.
type askedNode struct {
	*Demand
	t       *testing.T
	client  *fake.Clientset
	reports []error
	changes int
}

// atAsked has slices of the node, which publish all devices.
func atAsked(t *testing.T, objects []runtime.Object, do func(*askedNode)) {
	t.Helper()
	slices := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1-gpu"}, Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com"}}
	atFresh(t, append([]runtime.Object{slices}, objects...), do)
}

func atFresh(t *testing.T, objects []runtime.Object, do func(*askedNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &askedNode{t: t, client: fake.NewClientset(objects...)}
		changed := notify.NewTrigger()
		n.Demand = New(t.Context(), n.client, "gpu.nvidia.com", "ns", "published", "n1", notifytest.Reporter(func(err error) { n.reports = append(n.reports, err) }), changed)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				select {
				case <-changed:
					n.changes++
				case <-ctx.Done():
				}
			}
		}()
		ended := make(chan struct{})
		go func() {
			n.Run(ctx)
			close(ended)
		}()
		synctest.Wait()
		do(n)
		cancel()
		<-ended
	})
}

func configMap(asked ...string) *corev1.ConfigMap {
	state := demand.State{Since: map[string]time.Time{}, Written: time.Now()}
	for _, what := range asked {
		state.Since[what] = time.Now()
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "published"}, Data: demand.Encode(state)}
}

func (n *askedNode) write(c *corev1.ConfigMap) {
	n.t.Helper()
	maps := n.client.CoreV1().ConfigMaps("ns")
	if _, err := maps.Update(n.t.Context(), c, metav1.UpdateOptions{}); err != nil {
		if _, err := maps.Create(n.t.Context(), c, metav1.CreateOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
	n.pass(time.Millisecond)
}

func (n *askedNode) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *askedNode) want(when string, small, large sharing.Placements, changes int) {
	n.t.Helper()
	if a, b := n.Placements(gpu.GPU{}, "1g.10gb"), n.Placements(gpu.GPU{}, "3g.40gb"); a != small || b != large || n.changes != changes {
		n.t.Errorf("%s: placements %v and %v, want %v and %v; %d changes, want %d", when, a, b, small, large, n.changes, changes)
	}
}

const all, ending, one = sharing.AllPlacements, sharing.EndingPlacements, sharing.OnePlacement

func TestDemand_ConfigMapComesAndChanges_ProfilesFollow(t *testing.T) {
	atAsked(t, nil, func(n *askedNode) {
		n.want("without a ConfigMap", all, all, 0)
		n.write(configMap("1g.10gb"))
		n.want("first ConfigMap", all, ending, 1)
		n.pass(endingFor)
		n.want("after the end", all, one, 2)
		n.pass(time.Minute)
		n.write(configMap("1g.10gb"))
		n.want("renewed", all, one, 2)
		n.write(configMap("3g.40gb", "1g.10gb"))
		n.want("another profile", all, all, 3)
		n.pass(endingFor)
		n.write(configMap("3g.40gb"))
		n.want("no longer asked for", ending, all, 5)
		n.pass(endingFor / 2)
		n.write(configMap("3g.40gb", "1g.10gb"))
		n.want("asked for again", all, all, 6)
	})
}

// TestDemand_FreshNode_WaitsForTheFirstConfigMap has a node that publishes nothing yet, so nothing must end.
func TestDemand_FreshNode_WaitsForTheFirstConfigMap(t *testing.T) {
	const later = sharing.LaterPlacements
	atFresh(t, nil, func(n *askedNode) {
		n.want("at the start", later, later, 0)
		n.pass(freshFor / 2)
		n.write(configMap("1g.10gb"))
		n.want("first ConfigMap", all, one, 1)
		if shares := n.Shares(gpu.GPU{}); shares != later {
			t.Errorf("shares: %v", shares)
		}
	})
	atFresh(t, nil, func(n *askedNode) {
		n.pass(freshFor)
		n.want("no controller", all, all, 1)
		n.write(configMap("1g.10gb"))
		n.want("late ConfigMap", all, ending, 2)
	})
}

// TestDemand_SlicesUnreadable_AllPublished has a node of which it is unknown whether it has slices.
func TestDemand_SlicesUnreadable_AllPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API server is busy")
		})
		a := New(t.Context(), client, "gpu.nvidia.com", "ns", "published", "n1", notifytest.Reporter(nil), notify.NewTrigger())
		if got := a.Placements(gpu.GPU{}, "1g.10gb"); got != all {
			t.Errorf("the placements are %v, want all", got)
		}
	})
}

func TestDemand_OtherProfilesEachTime_EndedOnesForgotten(t *testing.T) {
	atAsked(t, nil, func(n *askedNode) {
		for i := range 100 {
			n.write(configMap(fmt.Sprintf("1g.%dgb", i)))
			n.pass(endingFor)
		}
		if len(n.ends) > 1 {
			t.Errorf("%d profiles end, want 1", len(n.ends))
		}
	})
}

func TestDemand_ConfigMapDeletedOrUnreadable_NothingChanges(t *testing.T) {
	atAsked(t, []runtime.Object{configMap("1g.10gb")}, func(n *askedNode) {
		n.want("at the start", all, one, 0)
		n.pass(time.Minute)
		changes := n.changes
		bad := configMap()
		bad.Data = map[string]string{demand.Key: "all of them"}
		n.write(bad)
		bad.Labels = map[string]string{"again": "yes"}
		n.write(bad)
		if n.want("unreadable", all, one, changes); len(n.reports) != 1 {
			t.Errorf("reports: %v", n.reports)
		}
		if err := n.client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "published", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		n.pass(5 * time.Minute)
		n.want("deleted", all, one, changes)
	})
}

// TestDemand_NoController_AllPublishedUntilItWritesAgain has a ConfigMap that stays, and one that is deleted.
func TestDemand_NoController_AllPublishedUntilItWritesAgain(t *testing.T) {
	for name, remove := range map[string]bool{"stays": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			atAsked(t, []runtime.Object{configMap("1g.10gb")}, func(n *askedNode) {
				away := false
				n.client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return away, nil, errors.New("connection refused")
				})
				for range 10 {
					n.pass(demand.Beat)
					n.write(configMap("1g.10gb"))
				}
				n.want("the controller writes", all, one, 1)
				if remove {
					if err := n.client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "published", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				n.pass(aloneAfter - time.Minute)
				n.want("for less than ten minutes", all, one, 1)
				away = true
				n.pass(time.Hour)
				n.want("the API server does not answer", all, one, 1)
				away = false
				n.pass(2 * time.Minute)
				if n.want("no controller", all, all, 2); n.Groups() != all || n.Monitors() != all || len(n.reports) != 1 {
					t.Errorf("groups %v, monitor devices %v, reports %v", n.Groups(), n.Monitors(), n.reports)
				}
				n.write(configMap("1g.10gb"))
				n.want("a controller again", all, ending, 3)
				n.pass(time.Minute)
				n.want("after the end", all, one, 4)
			})
		})
	}
}

// TestNewAsked_OldConfigMap_AllPublished has a plugin that restarts while no controller runs.
func TestNewAsked_OldConfigMap_AllPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := configMap("1g.10gb")
		time.Sleep(aloneAfter)
		client := fake.NewClientset(old)
		a := New(t.Context(), client, "gpu.nvidia.com", "ns", "published", "n1", notifytest.Reporter(nil), notify.NewTrigger())
		if got := a.Placements(gpu.GPU{}, "3g.40gb"); got != one {
			t.Errorf("before the check: %v", got)
		}
		a.checkAlone(t.Context())
		if got := a.Placements(gpu.GPU{}, "3g.40gb"); got != all {
			t.Errorf("%v", got)
		}
	})
}

func TestDemand_Kind_PublishedWhileAskedFor(t *testing.T) {
	for kind, least := range map[string]sharing.Placements{demand.Groups: sharing.NoPlacement, demand.Monitors: one} {
		atAsked(t, []runtime.Object{configMap()}, func(n *askedNode) {
			for _, step := range []struct {
				asked []string
				after time.Duration
				want  sharing.Placements
			}{
				{nil, 0, least}, {[]string{kind}, 0, all}, {nil, 0, ending}, {nil, endingFor, least},
			} {
				n.pass(time.Second)
				n.write(configMap(step.asked...))
				n.pass(step.after)
				got := map[string]sharing.Placements{demand.Groups: n.Groups(), demand.Monitors: n.Monitors()}
				if got[kind] != step.want {
					t.Errorf("%s, asked for %q: %v, want %v", kind, step.asked, got[kind], step.want)
				}
			}
		})
	}
}

// withSamples adds the sample nodes to a ConfigMap; the node of the tests is n1.
func withSamples(c *corev1.ConfigMap, nodes ...string) *corev1.ConfigMap {
	state, _ := demand.Decode(c.Data)
	state.Samples = append([]string{}, nodes...)
	c.Data = demand.Encode(state)
	return c
}

const later, endingOne, endingAll = sharing.LaterPlacements, sharing.EndingOnePlacement, sharing.EndingAllPlacements

func TestDemand_SampleNodesChange_OnlyTheyPublishTheOne(t *testing.T) {
	atAsked(t, []runtime.Object{withSamples(configMap("1g.10gb"), "n2")}, func(n *askedNode) {
		n.want("at the start", all, later, 0)
		n.write(withSamples(configMap("1g.10gb"), "n1", "n2"))
		n.want("named", all, one, 1)
		n.pass(endingFor)
		n.want("named for a while", all, one, 3)
		n.write(withSamples(configMap("1g.10gb"), "n2"))
		n.want("not named any more", all, endingOne, 4)
		n.pass(endingFor)
		n.want("after the end", all, later, 5)
		n.write(withSamples(configMap("1g.10gb"), "n3"))
		n.pass(time.Minute)
		n.want("other nodes change", all, later, 5)
		n.write(withSamples(configMap("3g.40gb"), "n3"))
		n.want("another profile", endingAll, all, 6)
		n.pass(endingFor)
		n.want("after the profile's end", later, all, 7)
		n.write(configMap("3g.40gb"))
		n.want("an earlier controller", one, all, 8)
	})
}

// TestDemand_FirstConfigMapNamesSampleNodes_OthersEndAll has a node that started before the controller.
func TestDemand_FirstConfigMapNamesSampleNodes_OthersEndAll(t *testing.T) {
	for node, want := range map[string][2]sharing.Placements{"n1": {ending, one}, "n2": {endingAll, later}} {
		atAsked(t, nil, func(n *askedNode) {
			n.want("without a ConfigMap", all, all, 0)
			n.write(withSamples(configMap("1g.10gb"), node))
			n.want("first ConfigMap", all, want[0], 1)
			n.pass(endingFor)
			n.want("after the end", all, want[1], 2)
		})
	}
}

// TestDemand_NoController_NodeWithoutSamplePublishesAll has a controller that ends and returns.
func TestDemand_NoController_NodeWithoutSamplePublishesAll(t *testing.T) {
	atAsked(t, []runtime.Object{withSamples(configMap("1g.10gb"), "n2")}, func(n *askedNode) {
		n.pass(aloneAfter + 2*time.Minute)
		n.want("no controller", all, all, 2)
		n.write(withSamples(configMap("1g.10gb"), "n2"))
		n.want("a controller again", all, endingAll, 3)
		n.pass(endingFor)
		n.want("after the end", all, later, 4)
	})
}

// TestDelay_ManyNodes_Spread counts the nodes that write in each tenth of the time.
func TestDelay_ManyNodes_Spread(t *testing.T) {
	for _, all := range []bool{false, true} {
		for nodes, limit := range map[int]time.Duration{1: 2 * time.Millisecond, 100: 200 * time.Millisecond, 500: time.Second, 10000: time.Second} {
			if all {
				limit = min(time.Duration(nodes)*20*time.Millisecond, 2*time.Minute)
			}
			tenths := [10]int{}
			for i := range nodes {
				a := &Demand{node: fmt.Sprintf("gpu-node-%d", i), nodes: nodes}
				delay := a.delay(all)
				if delay != a.delay(all) || delay < 0 || delay >= limit {
					t.Fatalf("%s of %d nodes: %v", a.node, nodes, delay)
				}
				tenths[10*delay/limit]++
			}
			if most := slices.Max(tenths[:]); nodes >= 500 && most > nodes/5 {
				t.Errorf("%d of %d nodes write in a tenth of %v: %v", most, nodes, limit, tenths)
			}
		}
	}
}

// TestDemand_ControllerOfManyNodesReturns_WritesAreSpread has a node of 5,000: without a controller each publishes all
// devices, and after its return each withdraws them.
func TestDemand_ControllerOfManyNodesReturns_WritesAreSpread(t *testing.T) {
	many := func() *corev1.ConfigMap {
		c := configMap("1g.10gb")
		c.Data["nodes"] = "5000"
		return c
	}
	atAsked(t, []runtime.Object{many()}, func(n *askedNode) {
		delay := n.delay(true)
		if delay < 10*time.Second {
			t.Fatalf("the node writes after %v, which shows nothing", delay)
		}
		n.pass(aloneAfter + 5*time.Second)
		n.want("no controller, before the node's turn", all, all, 1)
		n.pass(time.Minute + delay)
		n.want("no controller", all, all, 2)
		n.write(many())
		n.want("a controller again, before the node's turn", all, ending, 2)
		n.pass(delay + endingFor - time.Second)
		n.want("after the node's turn", all, ending, 3)
		n.pass(time.Second)
		n.want("after the end", all, one, 4)
	})
}

// TestDemand_GPUsAreNamed_OnlyTheyHavePartitionsAndShares has the GPUs a and b, and one in MIG mode.
func TestDemand_GPUsAreNamed_OnlyTheyHavePartitionsAndShares(t *testing.T) {
	const a, b = "0000:1b:00.0", "0000:43:00.0"
	cut := gpu.GPU{PCIAddress: "0000:52:00.0", MIG: gpu.MIG{Enabled: true}}
	serving := func(gpus ...string) *corev1.ConfigMap {
		state, _ := demand.Decode(configMap("1g.10gb", "2g.20gb", demand.Shares, demand.Groups).Data)
		state.Samples = []string{"n1"}
		state.Serving = map[string][]string{"1g.10gb": {"n1"}, demand.Shares: {"n1"}, demand.Groups: {"n1"}}
		if gpus != nil {
			state.GPUs = map[string][]string{"n1": gpus, "n2": {}}
		}
		c := configMap()
		c.Data = demand.Encode(state)
		return c
	}
	atAsked(t, []runtime.Object{serving(b)}, func(n *askedNode) {
		want := func(when string, onA, onB [4]sharing.Placements) {
			t.Helper()
			of := func(g gpu.GPU) [4]sharing.Placements {
				return [4]sharing.Placements{n.Placements(g, "1g.10gb"), n.Placements(g, "2g.20gb"), n.Placements(g, "3g.40gb"), n.Shares(g)}
			}
			if got := of(gpu.GPU{PCIAddress: a}); got != onA {
				t.Errorf("%s: the first GPU has %v, want %v", when, got, onA)
			}
			if got := of(gpu.GPU{PCIAddress: b}); got != onB {
				t.Errorf("%s: the second GPU has %v, want %v", when, got, onB)
			}
			if got := of(cut); got != [4]sharing.Placements{all, all, one, all} || n.Groups() != all {
				t.Errorf("%s: the GPU in MIG mode has %v, and groups are %v", when, got, n.Groups())
			}
		}
		// All nodes publish 2g.20gb, on all GPUs.
		plain, serves := [4]sharing.Placements{later, all, later, later}, [4]sharing.Placements{all, all, one, all}
		want("at the start", plain, serves)
		n.write(serving(a))
		want("the other GPU", serves, [4]sharing.Placements{endingAll, all, endingOne, ending})
		n.pass(endingFor)
		want("the other GPU, after the end", serves, plain)
		n.write(serving())
		want("an earlier controller", serves, serves)
		n.write(serving([]string{}...))
		n.write(serving(a, b))
		want("both", serves, serves)
	})
}

func TestDemand_FirstConfigMapUnreadable_AllPublished(t *testing.T) {
	bad := configMap()
	bad.Data = nil
	atAsked(t, []runtime.Object{bad}, func(n *askedNode) {
		if n.want("unreadable", all, all, 0); len(n.reports) != 1 {
			t.Errorf("reports: %v", n.reports)
		}
	})
}

func TestNewAsked_ServerAway_AllPublishedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		a := New(t.Context(), client, "gpu.nvidia.com", "ns", "published", "n1", notifytest.Reporter(nil), notify.NewTrigger())
		if got := a.Placements(gpu.GPU{}, "1g.10gb"); got != all {
			t.Errorf("%v", got)
		}
	})
}
