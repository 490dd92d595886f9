// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpu-dra-driver/pkg/node/nodetemplate"
)

// addBoard adds the flag for the board of a node that does not exist yet.
func addBoard(c *cobra.Command, usage string) *string {
	return c.Flags().String("board", "", usage+" One of: ("+strings.Join(nodetemplate.Boards(), ", ")+").")
}

// templateName is the name of a predicted node.
const templateName = "template"

// predict prints the slices of a new node as YAML or JSON, and the assumptions to the error output.
func (f *factory) predict(o *output, board string, args []string) error {
	if len(args) > 0 {
		return usageError{errors.New("--board excludes names of nodes")}
	}
	if o.table() {
		*o.flags.OutputFormat = "yaml"
	}
	t, err := f.template(board)
	if err != nil {
		return err
	}
	w, err := o.sliceWriter(f.Out)
	if err != nil {
		return err
	}
	for i := range t.Slices {
		one, err := w.render(&t.Slices[i])
		if err == nil {
			err = w.write(one)
		}
		if err != nil {
			return err
		}
	}
	return w.end()
}

// template returns the slices of a new node, and prints what it assumes.
func (f *factory) template(board string) (nodetemplate.Template, error) {
	t, err := nodetemplate.FromBoard(board, f.driver, templateName)
	if err != nil {
		return t, usageError{err}
	}
	for _, a := range t.Assumptions {
		fmt.Fprintf(f.ErrOut, "assumed: %s\n", a)
	}
	return t, nil
}
