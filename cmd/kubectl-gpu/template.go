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
type prediction struct{ board, node string }

func (p *prediction) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&p.board, "board", "",
		"Print the slices of a new node with this board instead. One of: ("+strings.Join(nodetemplate.Boards(), ", ")+").")
	c.Flags().StringVar(&p.node, "from-node", "", "Print the slices of a new node like this one instead.")
}

func (p prediction) wanted() bool { return p.board != "" || p.node != "" }

// templateName is the name of a predicted node.
const templateName = "template"

// predict prints the slices of a new node as YAML, JSON or for Karpenter, and the assumptions to the error output.
func (f *factory) predict(ctx context.Context, o *output, p prediction, args []string) error {
	if len(args) > 0 || p.board != "" && p.node != "" {
		return usageError{errors.New("--board and --from-node exclude each other and names of nodes")}
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
	for _, a := range t.Assumptions {
		fmt.Fprintf(f.ErrOut, "assumed: %s\n", a)
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

func (f *factory) template(ctx context.Context, p prediction) (nodetemplate.Template, error) {
	if p.board != "" {
		t, err := nodetemplate.FromBoard(p.board, f.driver, templateName)
		if err != nil {
			return t, usageError{err}
		}
		return t, nil
	}
	ctx, cancel := f.bounded(ctx, defaultTimeout)
	defer cancel()
	client, _, err := f.clients()
	if err != nil {
		return nodetemplate.Template{}, err
	}
	var published []resourceapi.ResourceSlice
	err = f.eachSliceOf(ctx, client, []string{p.node}, func(s *resourceapi.ResourceSlice) error {
		published = append(published, *s)
		return nil
	})
	if err != nil {
		return nodetemplate.Template{}, slicesError(err)
	}
	if len(published) == 0 {
		return nodetemplate.Template{}, fmt.Errorf("node %s has no ResourceSlices of driver %s; see kubectl gpu slices", p.node, f.driver)
	}
	return nodetemplate.FromNode(published, templateName)
}
