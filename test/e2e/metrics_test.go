//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/sim/engine"
)

// samples holds values of metrics by their name and labels.
type samples map[string]float64

// scrape reads the metrics of the node's plugin.
func scrape(ctx context.Context, t *testing.T) samples {
	t.Helper()
	p := pluginPods(ctx, t, 1)[0]
	text, err := cluster.Client.CoreV1().RESTClient().Get().Namespace(p.Namespace).Resource("pods").
		Name(p.Name + ":8080").SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	must(t, err)
	out := samples{}
	for line := range strings.Lines(string(text)) {
		if at := strings.LastIndex(line, " "); at > 0 && !strings.HasPrefix(line, "#") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
			must(t, err)
			out[line[:at]] = value
		}
	}
	return out
}

// of returns the values of a metric's samples with the given labels.
func (s samples) of(name string, labels ...string) (values []float64) {
	for sample, value := range s {
		if strings.HasPrefix(sample, name+"{") && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(sample, l) }) {
			values = append(values, value)
		}
	}
	return values
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// TestMetrics_LoadedPartitions_NamePodsAndAddUp loads the partitions of pods differently. The plugin's metrics name each pod with the
// load of its partition, and the partitions' memory adds up to the board's.
func TestMetrics_LoadedPartitions_NamePodsAndAddUp(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "mig-four-of-one-gpu")
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	at := slices.IndexFunc(state.GPUs, func(g engine.GPU) bool { return len(g.Instances) > 0 })
	if at < 0 {
		t.Fatal("no GPU has partitions")
	}
	g := state.GPUs[at]
	loads := map[string]float64{} // by UUID
	for n, i := range g.Instances {
		pid := fmt.Sprint(4_000_000 + n)
		load := 10 + 20*n
		must(t, cluster.Sim(ctx, "inject", "process", g.UUID, "--pid", pid, "--memory", fmt.Sprint(512*(n+1)), "--load", fmt.Sprint(load), "--gi", fmt.Sprint(i.ID)))
		t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "end", g.UUID, "--pid", pid)) })
		loads[i.Computes[0].UUID] = float64(load) / 100
	}
	must(t, cluster.Eventually(ctx, "the metrics have the loads", time.Minute, func(ctx context.Context) (bool, string) {
		s := scrape(ctx, t)
		for uuid, load := range loads {
			values := s.of("gpu_dra_claim_utilization_ratio", fmt.Sprintf("uuid=%q", uuid), `pod="`)
			if len(values) == 0 || slices.ContainsFunc(values, func(v float64) bool { return math.Abs(v-load) > .02 }) {
				return false, fmt.Sprintf("%s has %v, want %v", uuid, values, load)
			}
		}
		for _, p := range pods {
			if values := s.of("gpu_dra_claim_utilization_ratio", fmt.Sprintf("pod=%q", p.Name), fmt.Sprintf("namespace=%q", p.Namespace)); len(values) == 0 {
				return false, "no sample of pod " + p.Name
			}
		}
		claim := fmt.Sprintf("claim_namespace=%q", pods[0].Namespace)
		allocated, occupied := sum(s.of("gpu_dra_claim_allocated_gpu_seconds_total", claim)), sum(s.of("gpu_dra_claim_occupied_seconds_total", claim))
		if active := sum(s.of("gpu_dra_claim_active_gpu_seconds_total", claim, `source="gpm"`)); active == 0 || active > allocated || occupied == 0 {
			return false, fmt.Sprintf("%v active of %v allocated GPU seconds, %v s occupied", active, allocated, occupied)
		}
		parts := sum(s.of("gpu_dra_device_memory_used_bytes", `type="mig"`, fmt.Sprintf("gpu_uuid=%q", g.UUID)))
		board := sum(s.of("gpu_dra_device_memory_used_bytes", `type="gpu"`, fmt.Sprintf("gpu_uuid=%q", g.UUID)))
		if parts != board || board == 0 {
			return false, fmt.Sprintf("%v bytes in partitions, %v on the board", parts, board)
		}
		return true, ""
	}))
	var top struct{ Items []view.ClaimUse }
	must(t, json.Unmarshal([]byte(kubectlGPU(ctx, t, "top", "claims", "-A", "-o", "json")), &top))
	for _, u := range top.Items {
		if u.Namespace != pods[0].Namespace || !slices.Equal(u.Pods, []string{pods[0].Name}) || len(u.Devices) != len(loads) ||
			u.Utilization == nil || math.Abs(*u.Utilization-sum(slices.Collect(maps.Values(loads)))/float64(len(loads))) > .02 {
			t.Errorf("kubectl gpu top lists %+v", u)
		}
	}
	if len(top.Items) != 1 {
		t.Errorf("kubectl gpu top lists %d claims, want 1", len(top.Items))
	}
}

// TestMetrics_SharesOfOneGPU_HaveTheirProcesses has two MPS shares of a GPU with different loads.
func TestMetrics_SharesOfOneGPU_HaveTheirProcesses(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	createShareAs(ctx, t, nil, ns, "light", "10Gi", 2, "", "--alloc", "2Gi", "--load", "20")
	createShareAs(ctx, t, nil, ns, "heavy", "10Gi", 2, "", "--alloc", "6Gi", "--load", "60")
	_, err := cluster.WaitPods(ctx, ns, 2)
	must(t, err)
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	uuid := fmt.Sprintf("uuid=%q", state.GPUs[2].UUID)
	must(t, cluster.Eventually(ctx, "the metrics differ between the shares", time.Minute, func(ctx context.Context) (bool, string) {
		s := scrape(ctx, t)
		for pod, want := range map[string]float64{"light": .2, "heavy": .6} {
			of := []string{fmt.Sprintf("pod=%q", pod), fmt.Sprintf("namespace=%q", ns)}
			values, memory := s.of("gpu_dra_claim_utilization_ratio", of...), s.of("gpu_dra_claim_memory_used_bytes", of...)
			if len(values) != 1 || math.Abs(values[0]-want) > .02 || len(memory) != 1 || memory[0] < 10*want*(1<<30) {
				return false, fmt.Sprintf("%s has utilization %v and %v bytes", pod, values, memory)
			}
		}
		claims := sum(s.of("gpu_dra_claim_memory_used_bytes", fmt.Sprintf("namespace=%q", ns)))
		if device := sum(s.of("gpu_dra_device_memory_used_bytes", uuid, `type="gpu"`)); claims > device {
			return false, fmt.Sprintf("%v bytes of claims, %v of their GPU", claims, device)
		}
		claim := fmt.Sprintf("claim_namespace=%q", ns)
		if n := len(s.of("gpu_dra_claim_occupied_seconds_total", claim)); n != 2 {
			return false, fmt.Sprintf("%d of 2 claims have occupied seconds", n)
		}
		return true, ""
	}))
}
