// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

const topHelp = "The figures come from the metrics of the driver's plugins, through the API server's proxy, and are " +
	"at most some\n" +
	"seconds old; no Prometheus is needed. It needs the right to get the subresource pods/proxy in the driver's " +
	"namespace.\n" +
	"A dash stands for what the GPU or its driver does not measure. Plugins measure while claims are prepared on " +
	"their node."

func newTop(f *factory) *cobra.Command {
	c := newTopNodes(f, "top [NODE...]")
	w := &watching{factory: f, measured: true}
	w.addFlags(c)
	w.whenOn(c)
	c.Example = "  kubectl gpu top\n  kubectl gpu top -w --sort-by utilization\n  kubectl gpu top pods -A\n  kubectl " +
		"gpu top claims -n team-a -o json"
	c.AddCommand(newTopNodes(f, "nodes [NODE...]"), newTopClaims(f, "pods"), newTopClaims(f, "claims"))
	return c
}

func newTopNodes(f *factory, use string) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Args:  cobra.ArbitraryArgs,
		Short: "Show the utilization, memory, power and temperature of GPUs",
		Long: "Show the use of each node's GPUs: mean utilization, memory, power, and the temperature of the " +
			"hottest.\n" + topHelp,
		Example: "  kubectl gpu top nodes n1",
	}
	c.ValidArgsFunction = f.completeNodes
	o := f.addOutput(c)
	o.sortable(c, "node", "gpus", "utilization", "memory", "used", "free", "power", "temperature")
	everywhere(c)
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		measured, err := f.measured(ctx, args)
		if err != nil {
			return err
		}
		for node := range measured.missing {
			measured.samples[node] = nil // The node is listed, without figures.
		}
		var rows []record
		for _, n := range view.TopNodes(measured.samples) {
			gpus := "-"
			if measured.samples[n.Node] != nil {
				gpus = fmt.Sprint(n.GPUs)
			}
			rows = append(rows, record{name: n.Node, object: n, cells: []any{
				n.Node, gpus, utilization(n.Utilization), figure(n.MemoryUsedBytes, toMiB, "Mi"),
				figure(n.MemoryTotalBytes, toMiB, "Mi"), figure(n.PowerWatts, 1, "W"), figure(n.TemperatureCelsius, 1,
					"C"),
			}, order: map[string]any{
				"node":        n.Node,
				"gpus":        number(n.GPUs),
				"utilization": n.Utilization,
				"memory":      n.MemoryTotalBytes,
				"used":        n.MemoryUsedBytes,
				"free":        less(n.MemoryTotalBytes, n.MemoryUsedBytes),
				"power":       n.PowerWatts,
				"temperature": n.TemperatureCelsius,
			}})
		}
		const columns = "NODE,GPUS,UTILIZATION,MEMORY USED,MEMORY,POWER,HOTTEST"
		return o.print("NodeUse", columns, rows, "No plugin of driver "+f.driver+" found.")
	})
	return c
}

// newTopClaims returns the command for pods or for claims.
func newTopClaims(f *factory, what string) *cobra.Command {
	var s scope
	c := &cobra.Command{
		Use:   what,
		Short: "Show the utilization and memory of the devices of " + what,
		Long: "Show the use of the devices of " + what + ": mean utilization of the devices, and their memory, used " +
			"and granted.\n" +
			"Only " + what + " of prepared claims are listed.\n" + topHelp,
		Example: "  kubectl gpu top " + what + " -A",
	}
	o := f.addOutput(c)
	o.sortable(c, "namespace", "name", "node", "utilization", "used", "granted", "free")
	s.addNamespaceFlags(f, o, c)
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		measured, err := f.measured(ctx, nil)
		if err != nil {
			return err
		}
		all, kind, others := view.TopPods(measured.samples), "PodUse", "CLAIMS"
		if what == "claims" {
			all, kind, others = view.TopClaims(measured.samples), "ClaimUse", "PODS"
		}
		var rows []record
		for _, u := range all {
			if !s.all && u.Namespace != s.namespace {
				continue
			}
			beside := u.Claims
			if what == "claims" {
				u.Claims, beside = nil, u.Pods
			} else {
				u.Pods = nil
			}
			rows = append(rows, record{namespace: u.Namespace, name: u.Name, object: u, cells: []any{
				u.Namespace, u.Name, cmp.Or(u.Node, "-"), cmp.Or(strings.Join(beside, ","), "-"),
				cmp.Or(strings.Join(u.Devices, ","), "-"),
				utilization(u.Utilization), figure(u.MemoryUsedBytes, toMiB, "Mi"), figure(u.MemoryGrantedBytes, toMiB,
					"Mi"),
			}, order: map[string]any{
				"namespace":   u.Namespace,
				"name":        u.Name,
				"node":        u.Node,
				"utilization": u.Utilization,
				"used":        u.MemoryUsedBytes,
				"granted":     u.MemoryGrantedBytes,
				"free":        less(u.MemoryGrantedBytes, u.MemoryUsedBytes),
			}})
		}
		columns := "NAMESPACE,NAME,NODE,+" + others + ",DEVICES,UTILIZATION,MEMORY USED,GRANTED"
		return o.print(kind, columns, rows, s.none(what+" with prepared devices of driver "+f.driver))
	})
	return c
}

// measured reads the metrics of the plugins of the named nodes, or of all.
func (f *factory) measured(ctx context.Context, nodes []string) (scraped, error) {
	o, err := f.load(ctx, want{noSlices: true, pods: true, podLabels: view.PluginSelector})
	if err != nil {
		return scraped{}, err
	}
	if !o.Complete(read.Pods) && len(o.Pods) == 0 {
		return scraped{}, fmt.Errorf("you may not list the pods of the driver's plugins: give the driver's namespace " +
			"with --namespace, or ask for the right")
	}
	pods := view.PluginPods(o.Pods)
	for _, node := range nodes {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node }) {
			return scraped{}, fmt.Errorf("node %q runs no plugin of driver %s", node, f.driver)
		}
	}
	if len(nodes) > 0 {
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !slices.Contains(nodes, p.Spec.NodeName) })
	}
	out := scrape(ctx, o.client, pods, nodeOf)
	if len(out.samples) == 0 && ctx.Err() != nil {
		return scraped{}, fmt.Errorf("read the metrics of the plugins: %w", ctx.Err())
	}
	for _, node := range slices.Sorted(maps.Keys(out.missing)) {
		fmt.Fprintf(f.ErrOut, "note: node %s: %s\n", node, out.missing[node])
	}
	return out, nil
}

// toMiB converts bytes to MiB, in which the other commands print memory.
const toMiB = 1. / (1 << 20)

func utilization(part *float64) coloured {
	return coloured{figure(part, 100, "%"), view.LevelColour(part)}
}

// less subtracts two measurements.
func less(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return number(*a - *b)
}

// figure prints a measurement. A dash stands for none, which 0 % is not.
func figure(v *float64, scale float64, unit string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%s", scale**v, unit)
}
