// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/node/nodetemplate"
)

// prediction has the flags of slices for a node that does not exist yet.
type prediction struct{ board, instance, node string }

func (p *prediction) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&p.board, "board", "",
		"Print the slices of a new node with this board instead. One of: ("+strings.Join(nodetemplate.Boards(), ", ")+").")
	c.Flags().StringVar(&p.instance, "instance", "", "Print the slices of a new node of this instance type of a cloud instead, such as p5.48xlarge.")
	c.Flags().StringVar(&p.node, "from-node", "", "Print the slices of a new node like this one instead.")
}

func (p prediction) wanted() bool { return p != prediction{} }

// single reports whether at most one flag is set.
func (p prediction) single() bool {
	return p == prediction{board: p.board} || p == prediction{instance: p.instance} || p == prediction{node: p.node}
}

// templateName is the name of a predicted node.
const templateName = "template"

// predict prints the slices of a new node as YAML, JSON or for Karpenter, and the assumptions to the error output.
func (f *factory) predict(ctx context.Context, o *output, p prediction, args []string) error {
	if len(args) > 0 || !p.single() {
		return usageError{errors.New("--board, --instance and --from-node exclude each other and names of nodes")}
	}
	karpenter := *o.flags.OutputFormat == "karpenter"
	if !karpenter {
		if o.table() {
			*o.flags.OutputFormat = "yaml"
		}
		if err := o.validate(); err != nil {
			return err
		}
	}
	t, err := f.template(ctx, p)
	if err != nil {
		return err
	}
	if !karpenter {
		w, err := o.sliceWriter(f.Out)
		if err != nil {
			return err
		}
		for i := range t.Slices {
			if err := w.write(&t.Slices[i]); err != nil {
				return err
			}
		}
		return w.end()
	}
	data, err := yaml.Marshal(t.Karpenter())
	if err != nil {
		return fmt.Errorf("print the template for Karpenter: %w", err)
	}
	_, err = f.Out.Write(data)
	return err
}

// template returns the slices of a new node, and prints what it assumes.
func (f *factory) template(ctx context.Context, p prediction) (t nodetemplate.Template, err error) {
	switch {
	case p.board != "":
		t, err = nodetemplate.FromBoard(p.board, f.driver, templateName)
	case p.instance != "":
		t, err = nodetemplate.FromInstance(p.instance, f.driver, templateName)
	default:
		t, err = f.templateFrom(ctx, p.node)
	}
	if err != nil && p.node == "" {
		err = usageError{err}
	}
	if err != nil {
		return t, err
	}
	for _, a := range t.Assumptions {
		fmt.Fprintf(f.ErrOut, "assumed: %s\n", a)
	}
	return t, nil
}

func (f *factory) templateFrom(ctx context.Context, node string) (nodetemplate.Template, error) {
	ctx, cancel := f.bounded(ctx, defaultTimeout)
	defer cancel()
	var published []resourceapi.ResourceSlice
	if err := f.eachSlice(ctx, []string{node}, func(s *resourceapi.ResourceSlice) error {
		published = append(published, *s)
		return nil
	}); err != nil {
		return nodetemplate.Template{}, err
	}
	if len(published) == 0 {
		return nodetemplate.Template{}, fmt.Errorf("node %s has no ResourceSlices of driver %s; see kubectl gpu slices", node, f.driver)
	}
	return nodetemplate.FromNode(published, templateName)
}
