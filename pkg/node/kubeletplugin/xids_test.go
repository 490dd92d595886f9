// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// raise raises XIDs of the first GPU until one is counted: those of before the event set are lost.
func (e testEnv) raise(sample string, events ...engine.Event) {
	e.Helper()
	e.Eventually(sample, func() (bool, string) {
		simtest.Change(e.T, e.Machine, func(s *engine.State) {
			for _, x := range events {
				x.Type = engine.EventXID
				s.RaiseOf(&s.GPUs[0], x)
			}
		})
		text := e.MetricsText()
		return strings.Contains(text, sample), text
	})
}

// xidEvents returns the messages of the Events about an object for XIDs.
func (e testEnv) xidEvents(kind, name string) (out []string) {
	e.Helper()
	list, err := e.Client.CoreV1().Events("").List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, event := range list.Items {
		if event.InvolvedObject.Kind == kind && event.InvolvedObject.Name == name && event.Reason == "XIDError" {
			out = append(out, event.Message)
		}
	}
	return out
}

// TestPlugin_XIDs_ReachPodsOfTheGPU raises XIDs of programs, hundreds of them. The setting of the test's plugin ignores 43.
func TestPlugin_XIDs_ReachPodsOfTheGPU(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	c, other := e.AddClaim("u-1", first, ""), e.AddClaim("u-2", second, "")
	e.mustPrepare(t, apiFault{}, c)
	e.mustPrepare(t, apiFault{}, other)
	fault := engine.Event{Data: 31, GPUInstance: -1, ComputeInstance: -1}
	gone := engine.Event{Data: 13, GPUInstance: 5, ComputeInstance: 0}
	ignored := engine.Event{Data: 43, GPUInstance: -1, ComputeInstance: -1}
	unknown := engine.Event{Data: 1 << 40, GPUInstance: -1, ComputeInstance: -1}
	e.raise(`xid="31"} `, fault)
	e.raise(`xid="13"} `, gone, ignored, unknown, fault)
	e.raise(`xid="43"} `, ignored)
	e.raise(`xid="other"} `, unknown)
	const text = "XID 31, GPU memory page fault: the program's fault; the GPU is healthy"
	e.Event("Pod", "pod-u-1", "XIDError", "work failed for "+first+": "+text+". Restart the program")
	e.Event("ResourceClaim", c.Name, "XIDError", text)
	e.Event("Pod", "pod-u-1", "XIDError", "XID 1099511627776, unknown error: not in NVIDIA's catalogue. Read the NVRM messages")
	e.Eventually("the XID in the claim's status", func() (bool, string) {
		for _, d := range e.StoredClaim(c.Name).Status.Devices {
			for _, condition := range d.Conditions {
				if condition.Type == "XIDReported" {
					return condition.Status == metav1.ConditionTrue && strings.HasPrefix(condition.Message, "XID"), condition.Message
				}
			}
		}
		return false, "no condition"
	})
	for _, message := range e.xidEvents("Pod", "pod-u-1") {
		if strings.Contains(message, "XID 13") || strings.Contains(message, "XID 43") {
			t.Errorf("the pod is notified: %s", message)
		}
	}
	if n := len(e.xidEvents("Pod", "pod-u-1")); n != 2 {
		t.Errorf("%d Events for the pod, want one for each XID a minute", n)
	}
	if events := e.xidEvents("Pod", "pod-u-2"); len(events) > 0 {
		t.Errorf("the pod of another GPU is notified: %q", events)
	}
	for name, d := range e.Devices() {
		for _, taint := range d.Taints {
			if taint.Key == wire.UnhealthyTaint {
				t.Errorf("%s is tainted as %s", name, taint.Value)
			}
		}
	}
	e.Unprepare(c, other)
	e.CheckClean()
}
