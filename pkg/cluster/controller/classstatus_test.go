// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
)

func told(events *record.FakeRecorder) (out []string) {
	for {
		select {
		case e := <-events.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func TestEvaluate_ClassBecomesInvalid_OneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t,
			class("invalid", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`),
			class("none", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu" && device.attributes["gpu.nvidia.com"].productName == "Tesla T4"`),
			class("foreign", `device.driver == "nic.example.com" && device.attributes["nic.example.com"].speed == "fast"`),
			class("well", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`),
		)
		events := record.NewFakeRecorder(100)
		c, stop := e.start(func(o *Options) { o.Events = events })
		defer stop()
		pass(time.Hour)
		if got := told(events); len(got) > 0 {
			t.Errorf("nothing is known of the devices, and %v", got)
		}
		e.Publish("l40s-4", "a", 0)
		pass(time.Hour)
		got := told(events)
		if len(got) != 2 || !strings.HasPrefix(got[0]+got[1], "Warning InvalidSelector") && !strings.HasPrefix(got[1]+got[0], "Warning InvalidSelector") ||
			!strings.Contains(strings.Join(got, " "), "Normal MatchesNoDevice no device of the cluster") {
			t.Errorf("%v", got)
		}
		cluster, _ := c.Cluster()
		if diff := cmp.Diff(map[string]int{"ok": 2, "unmatched": 1, "invalid": 1}, cluster.Classes); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		for range 3 {
			e.Publish("l40s-4", "b", 0)
			pass(time.Minute)
			e.Withdraw("b")
			pass(time.Minute)
			e.Withdraw("a")
			pass(time.Minute)
			e.Publish("l40s-4", "a", 0)
			pass(time.Minute)
		}
		if got := told(events); len(got) > 0 {
			t.Errorf("the Event is repeated: %v", got)
		}
		e.Publish("t4-1", "c", 0)
		pass(time.Minute)
		e.Put(class("well", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].nothing == "gpu"`))
		pass(time.Minute)
		if got := told(events); len(got) != 1 || !strings.HasPrefix(got[0], "Warning InvalidSelector spec.selectors[0].cel.expression") {
			t.Errorf("one became invalid, and %v", got)
		}
		// A status that is not found in time stays the last one.
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		view := *c.ClusterView()
		if err := c.classStatuses.evaluate(late, &view, c.Classes.GetIndexer()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the time limit: %v", err)
		}
		if cluster, _ = c.Cluster(); cluster.Classes["invalid"] != 2 || len(told(events)) > 0 {
			t.Errorf("after the time limit: %v", cluster.Classes)
		}
		e.Remove("deviceclasses", "well")
		pass(time.Minute)
		cluster, _ = c.Cluster()
		if cluster.Classes["invalid"] != 1 || len(told(events)) > 0 {
			t.Errorf("a class that is gone counts: %v", cluster.Classes)
		}
	})
}
