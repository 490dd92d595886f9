// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
)

// listLimit is the time for an answer of the kubelet.
const listLimit = 5 * time.Second

// Loads gives the node's GPUs the utilization that its pods' annotations say.
type Loads struct {
	// Pods reads the pods of all namespaces.
	Pods typedcorev1.PodInterface
	// Kubelet knows the devices of pods: by CDI name those of claims, by UUID those of device plugins.
	Kubelet podresources.PodResourcesListerClient
	// CDIDir has the specs of the claims' devices.
	CDIDir string
	// Every is the time between two looks at the kubelet, while a pod has the annotation.
	Every time.Duration
}

// run follows the pods until the context ends. An unreadable answer leaves the utilization as it is.
func (l *Loads) run(ctx context.Context, root, node string, log *slog.Logger) {
	pods := informer(ctx, l.Pods, &corev1.Pod{}, fields.OneTermEqualSelector("spec.nodeName", node), func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return l.Pods.List(ctx, o)
	}, l.Pods.Watch, cache.ResourceEventHandlerFuncs{})
	ticker, last := time.NewTicker(l.Every), ""
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		problem := ""
		if err := l.follow(ctx, root, pods.List()); err != nil && ctx.Err() == nil {
			problem = err.Error()
		}
		if problem != "" && problem != last {
			log.Error("The utilization is not as the pods' annotations say", "annotation", label.Utilization, "problem", problem)
		}
		last = problem
	}
}

// follow sets the workloads of the machine.
func (l *Loads) follow(ctx context.Context, root string, pods []any) error {
	asked, problem := askedFor(pods)
	r, err := driverroot.Open(root)
	if err != nil {
		return nil // The agent reports a machine that is not as wanted.
	}
	s, err := r.State()
	if err != nil {
		return nil
	}
	loaded := func(g engine.GPU) bool { return len(g.Workloads) > 0 }
	if len(asked) == 0 && !slices.ContainsFunc(s.GPUs, loaded) {
		return problem
	}
	uses := map[string][]use{}
	if len(asked) > 0 {
		if uses, err = l.devices(ctx, asked); err != nil {
			return errors.Join(problem, err)
		}
	}
	set := func(s *engine.State) (changed bool) {
		for i := range s.GPUs {
			want := workloads(&s.GPUs[i], asked, uses)
			if !reflect.DeepEqual(want, s.GPUs[i].Workloads) {
				s.GPUs[i].Workloads, changed = want, true
			}
		}
		return changed
	}
	if !set(s) {
		return problem
	}
	return errors.Join(problem, r.Update(func(s *engine.State) error { set(s); return nil }))
}

// askedFor returns the percentages of the pods that run, by namespace and name, and a problem with those of other pods.
func askedFor(pods []any) (map[string]int, error) {
	asked := map[string]int{}
	var problems []string
	for _, item := range pods {
		p, ok := item.(*corev1.Pod)
		if !ok || p.Status.Phase != corev1.PodRunning {
			continue
		}
		text, ok := p.Annotations[label.Utilization]
		if !ok {
			continue
		}
		percent, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
		if err != nil || percent < 0 || percent > 100 {
			problems = append(problems, fmt.Sprintf("pod %s/%s has %q: give a number from 0 to 100", p.Namespace, p.Name, text))
			continue
		}
		asked[p.Namespace+"/"+p.Name] = percent
	}
	if len(problems) == 0 {
		return asked, nil
	}
	slices.Sort(problems)
	return asked, errors.New(strings.Join(problems, "; "))
}

// use names a part of the machine that a pod has: device nodes by their names, or a device's UUID.
type use struct {
	nodes []string
	uuid  string
}

// devices returns the uses of pods, by namespace and name.
func (l *Loads) devices(ctx context.Context, of map[string]int) (map[string][]use, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	answer, err := l.Kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet for the devices of its pods: %w", err)
	}
	specs, err := cdi.NewCache(cdi.WithSpecDirs(l.CDIDir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("reading the CDI specs in %s: %w", l.CDIDir, err)
	}
	uses := map[string][]use{}
	for _, pod := range answer.GetPodResources() {
		key := pod.GetNamespace() + "/" + pod.GetName()
		if _, ok := of[key]; !ok {
			continue
		}
		for _, c := range pod.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					uuid, _, _ := strings.Cut(id, "::") // Replicas have a number behind it.
					uses[key] = append(uses[key], use{uuid: uuid})
				}
			}
			for _, claimed := range c.GetDynamicResources() {
				for _, r := range claimed.GetClaimResources() {
					for _, d := range r.GetCdiDevices() {
						// A device of another driver has other nodes; one without a spec is of a claim that ends.
						if device := specs.GetDevice(d.GetName()); device != nil {
							uses[key] = append(uses[key], use{nodes: nodesOf(device)})
						}
					}
				}
			}
		}
	}
	return uses, nil
}

// nodesOf returns the names of a CDI device's nodes.
func nodesOf(d *cdi.Device) (names []string) {
	for _, n := range slices.Concat(d.ContainerEdits.DeviceNodes, d.GetSpec().ContainerEdits.DeviceNodes) {
		names = append(names, filepath.Base(cmp.Or(n.HostPath, n.Path)))
	}
	return names
}

// workloads returns those of a GPU, sorted by owner.
func workloads(g *engine.GPU, asked map[string]int, uses map[string][]use) (list []engine.Workload) {
	for owner, all := range uses {
		if asked[owner] == 0 {
			continue
		}
		if slices.ContainsFunc(all, func(u use) bool { return u.whole(g) }) {
			list = append(list, engine.Workload{Owner: owner, Load: asked[owner]})
		}
		for _, i := range g.Instances {
			for _, c := range i.Computes {
				if slices.ContainsFunc(all, func(u use) bool { return u.part(g, i, c) }) {
					list = append(list, engine.Workload{Owner: owner, Load: asked[owner], Place: &engine.Place{GPUInstance: i.ID, ComputeInstance: c.ID}})
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b engine.Workload) int {
		at := func(w engine.Workload) engine.Place {
			if w.Place == nil {
				return engine.Place{}
			}
			return *w.Place
		}
		return cmp.Or(strings.Compare(a.Owner, b.Owner), cmp.Compare(at(a).GPUInstance, at(b).GPUInstance), cmp.Compare(at(a).ComputeInstance, at(b).ComputeInstance))
	})
	return list
}

func (u use) whole(g *engine.GPU) bool {
	return !g.MIGEnabled && (u.uuid == g.UUID || slices.Contains(u.nodes, "nvidia"+strconv.Itoa(g.Minor)))
}

func (u use) part(g *engine.GPU, i engine.Instance, c engine.Compute) bool {
	return u.uuid != "" && u.uuid == c.UUID ||
		slices.Contains(u.nodes, fmt.Sprintf("nvidia-cap%d", engine.ComputeMinor(g.Minor, i.ID, c.ID)))
}
