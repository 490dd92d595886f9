// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
	"gpu-dra-driver/test/table"
)

// priced is the demo of which `make demo` prints the use and the cost.
const priced = "use-and-cost"

// loads are the parts of their devices, in percent, that simulated processes of its pods use.
var loads = map[string]int{"busy": 80, "partition": 40}

// enough is the number of GPU seconds of the busy pod after which its figures are printed.
const enough = 20

// cost runs processes on the pods' devices and returns their use and cost.
func cost(ctx context.Context, s *env.Env, pods []corev1.Pod) (out string, err error) {
	end, err := startProcesses(ctx, s, pods)
	// A partition cannot be destroyed while a process uses it.
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return "", err
	}
	var rows []podCost
	err = s.Eventually(ctx, fmt.Sprintf("%d GPU seconds of the busy pod", enough), 2*time.Minute, func(ctx context.Context) (bool, string) {
		samples, err := scrapeDriver(ctx, s)
		if err != nil {
			return false, err.Error()
		}
		rows = costs(samples, "demo-"+priced)
		used, idle := 0.0, len(pods)
		for _, r := range rows {
			if used = max(used, r.active); r.active > 0 {
				idle--
			}
		}
		return used >= enough && idle == len(pods)-len(loads), fmt.Sprint(rows)
	})
	if err != nil {
		return "", err
	}
	top, err := s.KubectlGPU(ctx, "top", "pods", "-n", "demo-"+priced)
	return formatCosts(rows) + "\nkubectl gpu top pods:\n\n" + top, err
}

// startProcesses simulates a process on the device of each pod of loads. The returned function ends those that began.
func startProcesses(ctx context.Context, s *env.Env, pods []corev1.Pod) (end func() error, err error) {
	var began [][]string
	end = func() (err error) {
		for _, args := range began {
			err = errors.Join(err, s.Sim(context.WithoutCancel(ctx), "inject", append([]string{"end"}, args...)...))
		}
		return err
	}
	state, err := s.SimState(ctx)
	if err != nil {
		return end, err
	}
	for i, p := range pods {
		load, ok := loads[p.Name]
		if !ok {
			continue
		}
		view, err := s.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		if err != nil {
			return end, err
		}
		gpu, place, err := find(state, view.UUIDs())
		if err != nil {
			return end, fmt.Errorf("pod %s: %w", p.Name, err)
		}
		process := []string{gpu, "--pid", strconv.Itoa(5000000 + i)}
		args := append(append([]string{"process"}, process...), "--memory", "2048", "--load", strconv.Itoa(load))
		if err := s.Sim(ctx, "inject", append(args, place...)...); err != nil {
			return end, err
		}
		began = append(began, process)
	}
	return end, nil
}

// find returns the GPU of a device, and the flags of its GPU instance if it is a partition. A container with a partition sees
// the UUID of its GPU too.
func find(state *engine.State, uuids []string) (gpu string, place []string, err error) {
	for _, g := range state.GPUs {
		for _, part := range g.Instances {
			for _, c := range part.Computes {
				if slices.Contains(uuids, c.UUID) {
					return g.UUID, []string{"--gi", strconv.Itoa(part.ID)}, nil
				}
			}
		}
		if slices.Contains(uuids, g.UUID) && len(g.Instances) == 0 {
			return g.UUID, nil, nil
		}
	}
	return "", nil, fmt.Errorf("no simulated GPU is one of %v", uuids)
}

// scrapeDriver returns the metrics of plugin and controller.
func scrapeDriver(ctx context.Context, s *env.Env) (view.Samples, error) {
	pods, err := s.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := view.Samples{}
	for _, p := range pods.Items {
		e, ok := view.MetricsEndpoint(p)
		if !ok || p.Status.Phase != corev1.PodRunning {
			continue
		}
		body, err := s.Client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, e.Port, e.Path, nil).Stream(ctx)
		if err != nil {
			return nil, err
		}
		samples, err := view.ReadSamples(body)
		_ = body.Close()
		if err != nil {
			return nil, err
		}
		for name, more := range samples {
			out[name] = append(out[name], more...)
		}
	}
	return out, nil
}

// podCost is the use of a pod's devices, in seconds of whole GPUs, and their cost.
type podCost struct {
	pod, device             string
	allocated, active, cost float64
}

// costs joins the counters of claims with the claims' pods in a namespace, and with the prices of their models.
func costs(samples view.Samples, namespace string) []podCost {
	prices := map[string]float64{}
	for _, s := range samples["gpu_dra_gpu_hourly_cost"] {
		prices[s.Labels["model"]] = s.Value
	}
	rows := map[string]*podCost{}
	for _, s := range samples["gpu_dra_claim_device_info"] {
		if pod := s.Labels["pod"]; s.Labels["claim_namespace"] == namespace && pod != "" {
			rows[s.Labels["claim_uid"]] = &podCost{pod: pod, device: s.Labels["device"]}
		}
	}
	for _, s := range samples["gpu_dra_claim_allocated_gpu_seconds_total"] {
		if r := rows[s.Labels["claim_uid"]]; r != nil {
			r.allocated += s.Value
			r.cost += s.Value / time.Hour.Seconds() * prices[s.Labels["model"]]
		}
	}
	for _, s := range samples["gpu_dra_claim_active_gpu_seconds_total"] {
		if r := rows[s.Labels["claim_uid"]]; r != nil {
			r.active += s.Value
		}
	}
	var out []podCost
	for _, uid := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, *rows[uid])
	}
	slices.SortStableFunc(out, func(a, b podCost) int { return strings.Compare(a.pod, b.pod) })
	return out
}

func formatCosts(rows []podCost) string {
	t := &table.Table{}
	t.Row("POD", "DEVICE", "ALLOCATED GPU SECONDS", "ACTIVE GPU SECONDS", "COST")
	for _, r := range rows {
		t.Row(r.pod, r.device, fmt.Sprintf("%.1f", r.allocated), fmt.Sprintf("%.1f", r.active), fmt.Sprintf("%.4f", r.cost))
	}
	return t.Format(width)
}
