//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWake_ClassIsWrittenAgain_SchedulerTriesThePod has a pod that waits for devices. Without an event the scheduler tries it
// again after five minutes. The controller writes a class again if a pod waits although its devices are free.
func TestWake_ClassIsWrittenAgain_SchedulerTriesThePod(t *testing.T) {
	ctx := t.Context()
	p := newPlane(ctx, t)
	p.nodes = 1
	must(t, p.createNodes(ctx))
	_, err := p.publish(ctx, settingNamed("plain"))
	must(t, err)
	scheduler, err := p.startScheduler("--v=3") // attemptsIn reads these lines.
	must(t, err)
	t.Cleanup(scheduler.stop)
	w := workloadNamed("whole")
	w.request = request(w.request.DeviceClassName, gpusOfNode+1)
	pod, claim := w.pod("large"), w.claim("large")
	pod.Namespace, claim.Namespace = namespace, namespace
	must(t, p.ask(ctx, pod, []*resourceapi.ResourceClaim{claim}))
	attempts := func() (n int) {
		log, err := os.ReadFile(scheduler.log)
		must(t, err)
		return len(attemptLine.FindAllString(string(log), -1))
	}
	must(t, p.until(ctx, "the scheduler refuses the pod", func() error {
		now, err := p.client.CoreV1().Pods(namespace).Get(context.WithoutCancel(ctx), "large", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, refused, message := state(now); !refused {
			return fmt.Errorf("it does not: %s", message)
		}
		return nil
	}))
	before := attempts()
	class, err := p.client.ResourceV1().DeviceClasses().Get(ctx, "nvlink.gpu.nvidia.com", metav1.GetOptions{})
	must(t, err)
	class.Annotations = map[string]string{"gpu-dra-driver/refreshed": "now"}
	_, err = p.client.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	must(t, err)
	must(t, p.until(ctx, "the scheduler tries the pod again", func() error {
		if attempts() == before {
			return fmt.Errorf("there were %d attempts", before)
		}
		return nil
	}))
}
