// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sharing"
	moves "gpu-dra-driver/pkg/show/pack"
)

const (
	// moveNodes have eight linked GPUs each. A trace has moveRequests requests, and moves are planned at
	// moveSamples moments of it.
	moveNodes    = 16
	moveRequests = 6000
	moveSamples  = 6
	moveTraces   = 2
	// planLimit is the time for a plan. A cluster in which no moves help takes all of it.
	planLimit = 3 * time.Second
)

var moveLoads = []float64{0.6, 0.8}

// moveScore counts the GPUs that moves of pods win at some moments of traces.
type moveScore struct {
	// samples are the moments, blocked those without a free group of four, and freed those of them in which moves free one.
	samples, blocked, freed int
	// pods is the number of moves for the freed groups. alone is the time in hours until a group is free without moves.
	pods  int
	alone float64
	ended int
	// won are the GPUs that `--defragment` wins, with so many moves.
	won, wonMoves int
	slowest       time.Duration
}

// stay is a request on its device.
type stay struct {
	departs float64
	node    int
	device  gpu.Device
	profile string
}

// replayMoves plays a trace, and plans moves at some moments without making them.
func replayMoves(c *cluster, requests []request, s *moveScore) error {
	var there []stay // by departure
	var waiting []float64
	free := func() bool { return slices.ContainsFunc(c.nodes, func(n *sharedFit) bool { return n.find(4) >= 0 }) }
	start, now := len(requests)/4, 0.0
	for i, r := range requests {
		for len(there) > 0 && there[0].departs <= r.arrives {
			now = there[0].departs
			c.nodes[there[0].node].release(there[0].device)
			there = there[1:]
			if len(waiting) > 0 && free() {
				for _, since := range waiting {
					s.alone += now - since
					s.ended++
				}
				waiting = nil
			}
		}
		node, device, _, err := c.place(r)
		if err != nil {
			return err
		}
		if node >= 0 {
			at, _ := slices.BinarySearchFunc(there, r.departs, func(a stay, departs float64) int { return cmp.Compare(a.departs, departs) })
			there = slices.Insert(there, at, stay{r.departs, node, device, r.profile})
		}
		if i < start || (i-start)%((len(requests)-start)/moveSamples) != 0 {
			continue
		}
		blocked := !free()
		if blocked {
			waiting = append(waiting, r.arrives)
		}
		if err := s.sample(there, blocked); err != nil {
			return err
		}
	}
	return nil
}

// sample plans moves for the cluster as it is.
func (s *moveScore) sample(there []stay, blocked bool) error {
	cluster, err := snapshot(there)
	if err != nil {
		return err
	}
	options := moves.Options{Driver: driver, Limit: planLimit}
	s.samples++
	goal, err := moves.ParseGoal(driver, "nvlink-4")
	if err != nil {
		return err
	}
	begun := time.Now()
	plan := moves.Make(context.Background(), cluster, goal, options)
	s.slowest = max(s.slowest, time.Since(begun))
	if (plan.Result == moves.Fits) == blocked {
		return fmt.Errorf("the model of the scheduler and the plan disagree whether a group of four is free: %s", plan)
	}
	if blocked {
		s.blocked++
		if plan.Result == moves.Moves {
			s.freed++
			s.pods += len(plan.Moves)
		}
	}
	plan = moves.Defragment(context.Background(), cluster, options)
	s.won += len(plan.Won)
	s.wonMoves += len(plan.Moves)
	return nil
}

// snapshot returns the cluster with a pod for each device.
func snapshot(there []stay) (*moves.Cluster, error) {
	c := &moves.Cluster{AllPods: true}
	var shapes pool.Shapes
	for i := range moveNodes {
		name := fmt.Sprintf("n%03d", i)
		c.Nodes = append(c.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for _, s := range published() {
			s.Name, s.Spec.NodeName, s.Spec.Pool.Name = name+"-"+s.Name, &name, poolOf(i)
			raw, err := s.Marshal()
			if err != nil {
				return nil, err
			}
			packed, err := shapes.Pack(raw)
			if err != nil {
				return nil, err
			}
			c.Slices = append(c.Slices, packed)
		}
	}
	controller, classes := true, map[string]bool{}
	for i, one := range there {
		class := cmp.Or(one.profile, "gpu")
		var consumed map[resourceapi.QualifiedName]resource.Quantity
		request := resourceapi.ExactDeviceRequest{AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: poolOf(one.node)}
		device := one.device
		if size := shareSize(one.profile); size > 0 {
			class, device.Profile = "gpu", ""
			consumed = map[resourceapi.QualifiedName]resource.Quantity{
				"memory": *resource.NewQuantity(int64(size)*h100Memory/wholeGPU/sharing.Step*sharing.Step, resource.BinarySI),
			}
			request.Capacity = &resourceapi.CapacityRequirements{Requests: consumed}
			id := types.UID(fmt.Sprint("share-", i))
			result.ShareID, result.ConsumedCapacity = &id, consumed
		}
		result.Device = device.Name()
		request.DeviceClassName = class
		if !classes[class] {
			classes[class] = true
			class, _ := (*allocator)(nil).Get(class) // It has no errors.
			c.Classes = append(c.Classes, class)
		}
		name := fmt.Sprintf("p%05d", i)
		c.Pods = append(c.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "trace", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{
				{Kind: "ReplicaSet", Name: "r", UID: "r", Controller: &controller},
			}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("n%03d", one.node)},
		})
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "trace", Name: name, UID: types.UID("claim-" + name), OwnerReferences: []metav1.OwnerReference{
			{Kind: "Pod", Name: name, UID: types.UID(name), Controller: &controller},
		}}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}}
		c.Claims = append(c.Claims, claim)
	}
	return c, nil
}

func poolOf(node int) string { return fmt.Sprintf("n%03d/gpu", node) }

// published returns copies of the slices of a node with shares, as the driver orders them.
func published() (out []*resourceapi.ResourceSlice) {
	for _, s := range newSharing(gpus, 18, orders[0], sharing.Node{MPS: true}).slices {
		out = append(out, s.DeepCopy())
	}
	return out
}

// compareMoves prints how often no group of four is free, how often `kubectl gpu pack` frees one, and with how many moves. It
// also prints the time until one is free without moves, and the GPUs that `--defragment` wins.
func compareMoves(out io.Writer) error {
	fmt.Fprintf(out, "\nMoves: %d nodes of %d linked GPUs, %d traces of %d requests, %d moments of each. Every pod may move, and none does.\n\n",
		moveNodes, gpus, moveTraces, moveRequests, moveSamples)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mix\tload\tno group of 4\tfreed by moves\tmoves each\tfree without (h)\tGPUs won\tmoves per GPU\tslowest plan\t")
	for _, m := range slices.Concat(openbMixes, mixes[3:], groupMixes[:1]) {
		for _, load := range moveLoads {
			var s moveScore
			for seed := range uint64(moveTraces) {
				c := newCluster(moveNodes, spread, policies[0], seed)
				if err := replayMoves(c, trace(m, load, gpus*moveNodes, moveRequests, seed), &s); err != nil {
					return fmt.Errorf("mix %s at load %.1f: %w", m.name, load, err)
				}
			}
			fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%s\t\n", m.name, 100*load, s, s.slowest.Round(10*time.Millisecond))
		}
	}
	return w.Flush()
}

// String returns the columns of a table. A dash stands for a mean of nothing.
func (s moveScore) String() string {
	mean := func(sum float64, n int) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", sum/float64(n))
	}
	return strings.Join([]string{
		fmt.Sprintf("%d of %d", s.blocked, s.samples), fmt.Sprintf("%d of %d", s.freed, s.blocked), mean(float64(s.pods), s.freed),
		mean(s.alone, s.ended), mean(float64(s.won), s.samples), mean(float64(s.wonMoves), s.won),
	}, "\t")
}
