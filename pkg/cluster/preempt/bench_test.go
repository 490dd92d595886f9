// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pool"
)

// fleet is a large cluster whose slices are packed once.
type fleet struct {
	*env
	packed []*pool.Slice
	nodes  []*corev1.Node
	bound  []*corev1.Pod
	queue  []*corev1.Pod
}

func (f *fleet) Objects() (controller.Objects, bool) {
	return controller.Objects{
		Slices: f.packed, Claims: f.Claims, Classes: f.Classes, Nodes: f.nodes, Pods: slices.Concat(f.bound, f.queue),
	}, true
}

// newFleet returns nodes of eight H100, each of which a pod of middle priority has.
func newFleet(t testing.TB, nodes int) *fleet {
	t.Helper()
	e := newEnv(t, Options{})
	_, err := e.Add("t", "hgx-h100", 8)
	e.put(err)
	for i := range 8 {
		if !e.Start(whytest.Claim(fmt.Sprint("p", i), whytest.GPUs, 1), "t") {
			t.Fatal("no room")
		}
	}
	template, err := whytest.Pack(e.Slices)
	e.put(err)
	held := e.Claims
	f := &fleet{env: e}
	e.Claims = nil
	for i := range nodes {
		name := fmt.Sprintf("n%04d", i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("64"), "pods": resource.MustParse("110")}
		f.nodes = append(f.nodes, n)
		for _, s := range template {
			one := *s // Its Shape is the same in memory.
			one.Name, one.Node, one.Pool.Name = name+s.Name[1:], name, name+s.Pool.Name[1:]
			f.packed = append(f.packed, &one)
		}
		for _, was := range held {
			c := was.DeepCopy()
			c.Name, c.UID = name+"-"+was.Name, types.UID(name+"-"+was.Name)
			c.Status.ReservedFor[0].Name, c.Status.ReservedFor[0].UID = c.Name, c.UID
			for j := range c.Status.Allocation.Devices.Results {
				r := &c.Status.Allocation.Devices.Results[j]
				r.Pool = name + r.Pool[1:]
			}
			p := whytest.Pod(c.Name, c)
			p.Spec.NodeName, p.Spec.Priority, p.Status.Phase = name, new(int32(50)), corev1.PodRunning
			e.Claims, f.bound = append(e.Claims, c), append(f.bound, p)
		}
	}
	e.loop = act.New(f, e.Keeper, pace)
	return f
}

// wait adds a pod that waits for GPUs.
func (f *fleet) wait(name, namespace string, priority int32, gpus int64) {
	f.t.Helper()
	p := f.addFor(name, "", priority, gpus, func(p *corev1.Pod) { p.Namespace = namespace })
	f.Claims[len(f.Claims)-1].Namespace = namespace
	f.queue = append(f.queue, p)
}

// hopeless adds 50 pods that ask for more GPUs than a node has, each for another number.
func (f *fleet) hopeless(namespace func(i int) string) {
	for i := range 50 {
		f.wait(fmt.Sprint("large-", i), namespace(i), 100, int64(9+i))
	}
}

// TestKeeper_FiveThousandNodes_VictimIsFoundWithinAMinute has 50 pods that never fit, in one namespace or in 50. A pod
// comes for which one node has a victim. Each step is a second.
func TestKeeper_FiveThousandNodes_VictimIsFoundWithinAMinute(t *testing.T) {
	for name, namespace := range map[string]func(i int) string{
		"one namespace": func(int) string { return whytest.Namespace },
		"50 namespaces": func(i int) string { return fmt.Sprint("team-", i) },
	} {
		nodes := seedtest.Count(5000)
		f := newFleet(t, nodes)
		f.hopeless(namespace)
		for range 10 {
			f.after(tick)
		}
		f.expect()
		f.bound[(nodes-1)*8].Spec.Priority = new(int32(1))
		f.wait("high", whytest.Namespace, 10, 1)
		steps := 0
		for ; len(f.evicted) == 0 && steps < 70; steps++ {
			f.after(tick)
		}
		f.expect(fmt.Sprintf("n%04d-p0", nodes-1))
		t.Logf("%s: %d steps", name, steps)
		if steps > int(time.Minute/tick) {
			t.Errorf("%s: after %d steps", name, steps)
		}
	}
}

// BenchmarkStep_FiveThousandNodes measures a step of the keeper that searches victims for a pod.
func BenchmarkStep_FiveThousandNodes(b *testing.B) {
	f := newFleet(b, 5000)
	f.hopeless(func(int) string { return whytest.Namespace })
	before := processorTime(b)
	for b.Loop() {
		f.after(tick)
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
}

// processorTime returns the processor time of the process, because other programs make the time of a clock long.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
