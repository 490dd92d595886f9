// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpu-dra-driver/pkg/view"
)

func newLayout(f *factory) *cobra.Command {
	var labels string
	c := &cobra.Command{
		Use:   "layout [NODE...]",
		Short: "Draw each GPU to scale: partitions, shares, groups",
		Long: "Draw each GPU's memory to scale. A letter fills the part of each claim, dots are free, and bars divide the\n" +
			"memory slices of a GPU with MIG. Brackets on the left join the GPUs of an NVLink group that a claim has.\n" +
			"Fragmentation is the share of the free slices that the largest free device cannot use.\n" +
			"Colours appear only on a terminal, and not if NO_COLOR is set.",
		Example: "  kubectl gpu layout\n  kubectl gpu layout n1",
	}
	c.ValidArgsFunction = f.completeNodes
	o := addOutput(c)
	c.Flags().StringVarP(&labels, "selector", "l", "", "Show only the nodes with these labels.")
	c.RunE = func(c *cobra.Command, args []string) error {
		nodes, err := f.nodes(c.Context(), args, labels)
		if err != nil {
			return err
		}
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
		return o.print(f.Out, f.ErrOut, "Node", nil, rows, "No GPUs of driver "+f.driver+" found.")
	}
	return c
}
