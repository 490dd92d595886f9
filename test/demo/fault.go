// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// fault is a fault of the GPU of a demo's pod, as arguments of `gpusim inject` around the GPU's address.
type fault struct {
	inject, end []string
	// event is a part of the Event that the pod gets.
	event string
	// replaced says that the pod is evicted, and another one takes its place.
	replaced bool
}

// faults are the faults of the demos that show one, by the demo's name.
var faults = map[string]fault{
	"gpu-fault":     {inject: []string{"recovery", "reset"}, end: []string{"recovery", "none"}, event: "the driver asks for a reset of the GPU"},
	"gpu-lost":      {inject: []string{"lose"}, end: []string{"restore"}, event: "the GPU has fallen off the bus", replaced: true},
	"program-fault": {inject: []string{"xid", "31"}, event: "XID 31, GPU memory page fault"},
}

// show injects the fault and returns what a person sees of it. It ends the fault before it returns.
func (f fault) show(ctx context.Context, s *env.Env, d env.Demo, pod corev1.Pod) (story string, err error) {
	claims, err := s.Claims(ctx, pod)
	if err != nil {
		return "", err
	}
	state, err := s.SimState(ctx)
	if err != nil {
		return "", err
	}
	if len(claims) == 0 || len(env.Results(claims[0])) == 0 {
		return "", fmt.Errorf("inject the fault of %s: pod %s has no GPU", d.Name, pod.Name)
	}
	address, err := addressOf(state, env.Results(claims[0])[0].Device)
	if err != nil {
		return "", err
	}
	defer func() {
		if f.end != nil {
			err = errors.Join(err, s.Sim(context.WithoutCancel(ctx), "inject", append(slices.Clone(f.end), address)...))
		}
	}()
	inject := append(slices.Clone(f.inject), address)
	found := ""
	if err := s.Eventually(ctx, "the Event of the fault", time.Minute, func(ctx context.Context) (bool, string) {
		// An XID is reported once, and a plugin that has just started does not listen yet.
		if err := s.Sim(ctx, "inject", inject...); err != nil {
			return false, err.Error()
		}
		events, err := s.Client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, f.event) {
				found = e.Message
			}
		}
		return found != "", fmt.Sprintf("%d Events, none with %q", len(events.Items), f.event)
	}); err != nil {
		return "", err
	}
	story = fmt.Sprintf("$ gpusim inject %s\nEvent of pod %s: %s\n", strings.Join(inject, " "), pod.Name, found)
	if f.replaced {
		err = s.Eventually(ctx, "another pod in place of "+pod.Name, 2*time.Minute, func(ctx context.Context) (bool, string) {
			pods, err := s.Client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
				return p.Name != pod.Name && p.Status.Phase == corev1.PodRunning
			})
			if i >= 0 {
				story += fmt.Sprintf("Pod %s runs in its place.\n", pods.Items[i].Name)
			}
			return i >= 0, fmt.Sprintf("%d pods", len(pods.Items))
		})
	}
	return story, err
}

// addressOf returns the PCI address of the GPU of a device.
func addressOf(state *engine.State, device string) (string, error) {
	for _, g := range state.GPUs {
		if strings.HasSuffix(device, strings.NewReplacer(":", "-", ".", "-").Replace(g.Address)) {
			return g.Address, nil
		}
	}
	return "", fmt.Errorf("no simulated GPU is the device %s", device)
}
