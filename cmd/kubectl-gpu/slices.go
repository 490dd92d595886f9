// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpu-dra-driver/pkg/view"
)

func newSlices(f *factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "slices [NODE...]",
		Short: "List ResourceSlices, merged by pool",
		Long: "List the driver's pools: generation, slices, devices. A pool is complete if all slices of its newest generation\n" +
			"exist; claims get no device of an incomplete pool. -o json and yaml print the ResourceSlices as they are.\n\n" +
			"--board and --from-node print the slices of a node that does not exist yet, for autoscalers: as yaml, json or\n" +
			"karpenter. The assumptions about this node go to the error output.",
		Example: "  kubectl gpu slices\n  kubectl gpu slices n1 -o yaml\n  kubectl gpu slices --board hgx-h100 -o karpenter",
	}
	c.ValidArgsFunction = f.completeNodes
	o := addOutput(c)
	var p prediction
	p.addFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if p.wanted() {
			return f.predict(c.Context(), o, p, args)
		}
		if err := o.validate(); err != nil {
			return err
		}
		ctx, cancel, err := f.bounded(c.Context())
		if err != nil {
			return err
		}
		defer cancel()
		all, err := f.load(ctx, want{raw: !o.table()})
		if err != nil {
			return err
		}
		if !o.table() {
			return f.rawSlices(o, all.Raw, args)
		}
		var rows []record
		for _, p := range view.Pools(all.Slices) {
			if len(args) > 0 && !slices.Contains(args, p.Node) {
				continue
			}
			rows = append(rows, record{name: p.Name, object: p, cells: []any{
				p.Name, p.Node, fmt.Sprint(p.Generation), fmt.Sprintf("%d/%d", p.Slices, p.Expected), fmt.Sprint(p.Devices), yes(p.Slices == p.Expected),
				fmt.Sprint(p.Outdated),
			}})
		}
		for driver, n := range all.ForeignSlices {
			fmt.Fprintf(f.ErrOut, "note: %d slices of driver %s are not listed\n", n, driver)
		}
		return o.print(f.Out, f.ErrOut, "Pool", poolColumns, rows, "No ResourceSlices of driver "+f.driver+" found.")
	}
	return c
}

var poolColumns = []column{
	{"POOL", false}, {"NODE", false}, {"GENERATION", false}, {"SLICES", false}, {"DEVICES", false}, {"COMPLETE", false}, {"OUTDATED", true},
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (f *factory) rawSlices(o *output, all []resourceapi.ResourceSlice, nodes []string) error {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return usageError{err}
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList"}}
	for _, s := range all {
		if s.Spec.Driver != f.driver || len(nodes) > 0 && (s.Spec.NodeName == nil || !slices.Contains(nodes, *s.Spec.NodeName)) {
			continue
		}
		s.ManagedFields = nil
		s.APIVersion, s.Kind = "resource.k8s.io/v1", "ResourceSlice"
		data, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("print ResourceSlice %s: %w", s.Name, err)
		}
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON(data); err != nil {
			return fmt.Errorf("print ResourceSlice %s: %w", s.Name, err)
		}
		list.Items = append(list.Items, u)
	}
	return printer.PrintObj(list, f.Out)
}
