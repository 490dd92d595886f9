// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/why"
)

// mixed is the name of the cells in which pods of all kinds arrive and leave.
//
// The plain cluster gets the same pods in the same order, but its devices cannot be cut. A pod that wants a partition or a
// share gets a GPU there, and a pod that wants a group gets four linked GPUs: its user has no other choice. Leaving these
// pods out would give the plain scheduler fewer pods for the same GPUs, and no pods of four GPUs, which cost it more than
// others. As many GPUs are in use in both clusters, because pods leave by the GPUs that they take.
const mixed = "mixed"

// kinds are the pods that want each kind of devices, in fifty.
var kinds = []struct {
	name string
	pods int
}{{"whole", 39}, {"1g", 4}, {"3g", 1}, {"share", 5}, {"group", 1}}

// dealer returns kinds of pods in random order. Each fifty in a row have the right number of every kind.
type dealer struct {
	random *rand.Rand
	left   []string
}

func (d *dealer) next() string {
	if len(d.left) == 0 {
		for _, k := range kinds {
			d.left = append(d.left, slices.Repeat([]string{k.name}, k.pods)...)
		}
		d.random.Shuffle(len(d.left), func(a, b int) { d.left[a], d.left[b] = d.left[b], d.left[a] })
	}
	kind := d.left[0]
	d.left = d.left[1:]
	return kind
}

// churn returns the pods that are in the cluster at the start, and n that arrive then. Before one arrives, others leave
// until it stays within that many GPUs. Each pod in the cluster leaves with the same probability, as with exponential
// lifetimes. A seed selects the kinds of the arriving pods, whatever serves them.
func churn(seed uint64, gpus float64, n int, serving func(kind string) workload) (residents, arrivals []arrival) {
	first, later := dealer{random: rand.New(rand.NewPCG(seed, 1))}, dealer{random: rand.New(rand.NewPCG(seed, 2))}
	leaving := rand.New(rand.NewPCG(seed, 3))
	used := 0.0
	for {
		w := serving(first.next())
		if used += w.gpus; used > gpus {
			used -= w.gpus
			break
		}
		residents = append(residents, arrival{name: fmt.Sprintf("resident-%d", len(residents)), workload: w})
	}
	present := slices.Clone(residents)
	for i := range n {
		a := arrival{name: fmt.Sprintf("mixed-%d", i), workload: serving(later.next())}
		for used += a.workload.gpus; used > gpus && len(present) > 0; {
			k := leaving.IntN(len(present))
			a.leave = append(a.leave, present[k].name)
			used -= present[k].workload.gpus
			present[k] = present[len(present)-1]
			present = present[:len(present)-1]
		}
		present = append(present, a)
		arrivals = append(arrivals, a)
	}
	return residents, arrivals
}

// mixed measures the scheduler while pods of all kinds arrive and leave. The first result is of all pods, the others are of
// the kinds.
func (b *bench) mixed(ctx context.Context, scheduler *process, r result, s setting, published [][]*resourceapi.ResourceSlice) ([]result, error) {
	residents, arrivals := churn(b.seed, float64(gpusOfNode*b.nodes*b.level)/100, b.pods, s.serving)
	there := place(residents, published)
	if missing := len(residents) - len(there); missing > 0 {
		fmt.Fprintf(b.log, "%s: %d of the first %d pods have no room on the nodes that serve them\n", r.setting, missing, len(residents))
	}
	if err := b.settle(ctx, there); err != nil {
		return nil, fmt.Errorf("create the first pods: %w", err)
	}
	r, bindings, err := b.observe(ctx, scheduler, r, alike("warm", workloads[0], 2), arrivals)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(scheduler.log)
	if err != nil {
		return nil, err
	}
	attempts, err := attemptsIn(string(log))
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", scheduler.name, err)
	}
	return append([]result{r}, byKind(r, arrivals, bindings, attempts)...), b.clean(ctx)
}

// attempt is an attempt of the scheduler to place a pod.
type attempt struct {
	pod  string
	took time.Duration
}

// With `--v=3`, the scheduler's log has such a line for each attempt.
var attemptLine = regexp.MustCompile(`(?m)^I\d{4} (\d\d:\d\d:\d\d\.\d+) .*"Attempting to schedule pod" pod="` + namespace + `/([^"]+)"`)

// attemptsIn returns the attempts of a log without the last. The scheduler makes one after the other, so each takes until
// the next begins. If no pod waits for an attempt, that time belongs to the attempt before.
func attemptsIn(log string) (out []attempt, err error) {
	var began time.Time
	for i, line := range attemptLine.FindAllStringSubmatch(log, -1) {
		now, err := time.Parse("15:04:05.000000", line[1])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			took := now.Sub(began)
			if took < 0 {
				took += 24 * time.Hour // The lines have no year, and midnight was between them.
			}
			out[i-1].took = took
		}
		out, began = append(out, attempt{pod: line[2]}), now
	}
	return out[:max(0, len(out)-1)], nil
}

// byKind returns a result of each workload. Its rate is the pods in the time of their attempts, failed ones too. All pods wait
// in one queue: in the time of all, every kind would have the same ratio to the plain cluster.
func byKind(all result, arrivals []arrival, bindings []binding, attempts []attempt) (out []result) {
	for _, w := range workloads {
		ours := map[string]bool{}
		for _, a := range arrivals {
			if a.workload.name == w.name {
				ours[a.name] = true
			}
		}
		if len(ours) == 0 {
			continue
		}
		var span time.Duration
		for _, a := range attempts {
			if ours[a.pod] {
				span += a.took
			}
		}
		r := result{setting: all.setting, workload: kindOf(w.name), used: all.used, wanted: len(ours)}
		if w.instead != "" {
			r.like = kindOf(w.instead)
		}
		out = append(out, r.with(slices.DeleteFunc(slices.Clone(bindings), func(b binding) bool { return !ours[b.pod] }), span))
	}
	return out
}

func kindOf(workload string) string { return mixed + ": " + workload }

// newFleet returns a node for the scheduler's allocator.
func newFleet(node int, published []*resourceapi.ResourceSlice) whytest.Fleet {
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: nodeName(node)}}}
	return whytest.Fleet{Cluster: why.Cluster{Nodes: nodes, Classes: classes()}, Slices: published}
}

// placed is a pod with its node and its allocated claim.
type placed struct {
	arrival
	claim *resourceapi.ResourceClaim
	node  string
}

// place returns the pods that have room, where the scheduler's allocator allocated their claims. Nodes take turns. Large
// pods come first, because small ones would not leave room for them.
func place(pods []arrival, published [][]*resourceapi.ResourceSlice) (out []placed) {
	fleets := make([]whytest.Fleet, len(published))
	for i := range fleets {
		fleets[i] = newFleet(i, published[i])
	}
	turn := map[string]int{} // by workload
	for _, a := range slices.SortedStableFunc(slices.Values(pods), func(a, b arrival) int { return cmp.Compare(b.workload.gpus, a.workload.gpus) }) {
		claim := a.workload.claim(a.name)
		claim.UID = types.UID(a.name) // The API server replaces it.
		for range fleets {
			i := turn[a.workload.name] % len(fleets)
			turn[a.workload.name]++
			if fleets[i].Start(claim, nodeName(i)) {
				out = append(out, placed{a, claim, nodeName(i)})
				break
			}
		}
	}
	return out
}

// settle creates pods on their nodes.
func (c *controlPlane) settle(ctx context.Context, pods []placed) error {
	return each(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := c.createAllocated(ctx, pods[i].claim); err != nil {
			return err
		}
		pod := pods[i].workload.pod(pods[i].name)
		pod.Spec.NodeName = pods[i].node
		_, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}
