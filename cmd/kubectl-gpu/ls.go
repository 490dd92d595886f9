// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

func newLs(f *factory) *cobra.Command {
	c := f.newNodes(&cobra.Command{
		Use:   "ls [NODE...]",
		Args:  cobra.ArbitraryArgs,
		Short: "List GPUs, their use, health and holders",
		Long: "List the GPUs of the cluster, or of some nodes: model, memory, use, health, and the claims that hold " +
			"them.\n" +
			"A GPU's use is free, whole (one claim has it), shares, partitions, group (an NVLink group that a claim " +
			"has),\n" +
			"external (it has partitions that no claim holds), unpublished (a claim has it, but no slice does) or " +
			"unread (a claim has it,\n" +
			"and you may not list slices).",
		Example: "  kubectl gpu ls\n  kubectl gpu ls -w\n  kubectl gpu ls --sort-by free\n  kubectl gpu ls n1 -o " +
			"wide\n  kubectl gpu ls -l pool=training -o json",
	}, []string{"node", "gpu", "model", "memory", "free", "use",
		"health"}, func(o *output, all *objects, nodes []view.Node) error {
		var rows []record
		for _, n := range nodes {
			for _, g := range n.GPUs {
				rows = append(rows, gpuRow(g))
			}
		}
		const columns = "NODE,GPU,MODEL,MEMORY,USE,HEALTH,HOLDERS,+FREE SLICES,+FRAGMENTED,+UUID"
		return o.print("GPU", columns, rows, all.noGPUs())
	})
	w := &watching{factory: f}
	w.addFlags(c)
	w.whenOn(c)
	c.AddCommand(newLsPods(f))
	return c
}

// newNodes completes a command that shows nodes: those with the names and labels that the user gives. order has the
// words by which its rows can be sorted.
func (f *factory) newNodes(
	c *cobra.Command, order []string, show func(*output, *objects, []view.Node) error,
) *cobra.Command {
	var labels string
	c.ValidArgsFunction = f.completeNodes
	o := f.addOutput(c)
	if len(order) > 0 {
		o.sortable(c, order...)
	}
	everywhere(c)
	c.Flags().StringVarP(&labels, "selector", "l", "", "Show only the nodes with these labels.")
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		all, err := f.load(ctx, want{claims: true, rules: true, nodes: true, nodeLabels: labels})
		if err != nil {
			return err
		}
		nodes, err := f.selected(all, args, labels)
		if err != nil {
			return err
		}
		return show(o, all, nodes)
	})
	return c
}

// everywhere has a command accept -A, which people are used to. GPUs and nodes have no namespace, so it changes
// nothing.
func everywhere(c *cobra.Command) {
	c.Flags().BoolP("all-namespaces", "A", false, "Changes nothing, because GPUs have no namespace.")
}

func gpuRow(g view.GPU) record {
	free, fragmented := "-", "-"
	if g.MemorySlices > 0 {
		free = fmt.Sprintf("%d/%d", g.FreeSlices, g.MemorySlices)
		// A GPU that is closed to new claims, or free as a whole, is not fragmented.
		if g.Condition() == "ok" && (g.UsableSlices > 0 || g.FreeSlices < g.MemorySlices) {
			fragmented = fmt.Sprintf("%.0f%%", 100*g.Fragmentation())
		}
	}
	model, state, used := cmp.Or(strings.TrimPrefix(g.Product, "NVIDIA "), "-"), coloured{g.Condition(), g.Colour()},
		coloured{g.Summary(), 0}
	if g.Use == view.Free {
		used.colour = g.Colour()
	}
	// GPUs with a fault come first.
	health := "1"
	if g.Condition() != "ok" {
		health = "0" + g.Condition()
	}
	return record{
		name: g.Node + "/" + g.Name, object: g,
		cells: []any{
			g.Node, g.Name, model, size(g.MemoryBytes), used, state,
			cmp.Or(strings.Join(g.Holders(), ","), "-"), free, fragmented, cmp.Or(g.UUID, "-"),
		},
		order: map[string]any{
			"node":   g.Node,
			"gpu":    g.Name,
			"model":  model,
			"memory": number(g.MemoryBytes),
			"free":   number(g.FreeBytes()),
			"use":    g.Summary(),
			"health": health,
		},
	}
}

// selected returns the named nodes, with the labels. A name that publishes no device is an error.
func (f *factory) selected(o *objects, names []string, labels string) ([]view.Node, error) {
	all := view.Nodes(o.Objects)
	for _, n := range all {
		if n.Incomplete {
			fmt.Fprintf(f.ErrOut, "note: node %s: slices are missing, as during an update: the list may lack GPUs\n",
				n.Name)
		}
		if n.Unreadable > 0 {
			fmt.Fprintf(f.ErrOut, "note: node %s: %d devices have names that driver %s does not give\n", n.Name,
				n.Unreadable, f.driver)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(n view.Node) bool { return n.Name == name }) {
			if o.Failed(read.ResourceSlices) {
				return nil, fmt.Errorf("node %q: no claim has a GPU of it, and its ResourceSlices were not read", name)
			}
			return nil, fmt.Errorf("node %q publishes no devices of driver %s", name, f.driver)
		}
	}
	labelled := sets.New[string]()
	for _, n := range o.CoreNodes {
		labelled.Insert(n.Name)
	}
	return slices.DeleteFunc(all, func(n view.Node) bool {
		return len(names) > 0 && !slices.Contains(names, n.Name) || labels != "" && !labelled.Has(n.Name)
	}), nil
}

// noGPUs is the text of an empty list.
func (o *objects) noGPUs() string {
	if o.Failed(read.ResourceSlices) {
		return "No claim that was read has a GPU of driver " + o.Driver + "; GPUs without claims are not known."
	}
	return "No GPUs of driver " + o.Driver + " found."
}

func size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

func newLayout(f *factory) *cobra.Command {
	return f.newNodes(&cobra.Command{
		Use:   "layout [NODE...]",
		Short: "Draw each GPU to scale: partitions, shares, groups",
		Long: "Draw each GPU's memory to scale. A letter fills the part of each claim, dots are free, and bars " +
			"divide the\n" +
			"memory slices of a GPU with MIG. Brackets on the left join the GPUs of an NVLink group that a claim " +
			"has.\n" +
			"Fragmentation is the share of the free slices that the largest free device cannot use.",
		Example: "  kubectl gpu layout\n  kubectl gpu layout n1",
	}, nil, func(o *output, all *objects, nodes []view.Node) error {
		if o.table() && len(nodes) > 0 {
			for _, n := range nodes {
				fmt.Fprint(f.Out, view.Drawing{Width: f.width(), Colours: f.colours()}.Node(n))
			}
			return nil
		}
		var rows []record
		for _, n := range nodes {
			rows = append(rows, record{name: n.Name, object: n})
		}
		return o.print("Node", "", rows, all.noGPUs())
	})
}
