// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// output has the flags of a command that prints rows.
type output struct {
	*factory
	flags     *genericclioptions.PrintFlags
	noHeaders bool
}

// addOutput adds the flags. An unknown format is an error before the command runs.
func (f *factory) addOutput(c *cobra.Command) *output {
	o := &output{factory: f, flags: genericclioptions.NewPrintFlags("")}
	o.flags.AddFlags(c)
	c.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Print tables without the line of headers.")
	for _, name := range []string{"allow-missing-template-keys", "show-managed-fields"} {
		c.Flag(name).Hidden = true // They are kubectl's, and mean little for these objects.
	}
	c.PreRunE = func(*cobra.Command, []string) error { return o.validate() }
	c.Flag("output").Usage = "Output format. One of: (table, wide, " + strings.Join(o.flags.AllowedFormats(), ", ") + ")."
	return o
}

// table reports whether the output is for people.
func (o *output) table() bool {
	format := *o.flags.OutputFormat
	return (format == "" || format == "table" || format == "wide") && *o.flags.TemplatePrinterFlags.TemplateArgument == ""
}

// validate returns an error for an unknown format.
func (o *output) validate() error {
	if o.table() {
		return nil
	}
	if _, err := o.flags.ToPrinter(); err != nil {
		return usageError{err}
	}
	return nil
}

// record is one row of a table, and the object that other formats print. The object's fields stand beside apiVersion,
// kind and metadata.
type record struct {
	namespace, name string
	object          any
	cells           []any
}

// apiVersion stands in the printed objects. The API server does not know them.
const apiVersion = "cli.gpu.nvidia.com/v1alpha1"

// print writes records in the format that the user chose. columns are the headers of the table, divided by commas; -o
// wide only shows those with a plus. none is printed in place of an empty table.
func (o *output) print(kind, columns string, records []record, none string) error {
	if o.table() {
		if len(records) == 0 {
			fmt.Fprintln(o.ErrOut, none)
			return nil
		}
		t := &metav1.Table{}
		for _, header := range strings.Split(columns, ",") {
			name, wide := strings.CutPrefix(header, "+")
			d := metav1.TableColumnDefinition{Name: name, Type: "string"}
			if wide {
				d.Priority = 1
			}
			t.ColumnDefinitions = append(t.ColumnDefinitions, d)
		}
		for _, r := range records {
			t.Rows = append(t.Rows, metav1.TableRow{Cells: r.cells})
		}
		options := printers.PrintOptions{NoHeaders: o.noHeaders, Wide: *o.flags.OutputFormat == "wide"}
		return printers.NewTablePrinter(options).PrintObj(t, o.Out)
	}
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return usageError{err}
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": apiVersion, "kind": kind + "List"}}
	for _, r := range records {
		item, err := toObject(kind, r)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, item)
	}
	return printer.PrintObj(list, o.Out)
}

func toObject(kind string, r record) (unstructured.Unstructured, error) {
	data, err := json.Marshal(r.object)
	if err != nil {
		return unstructured.Unstructured{}, fmt.Errorf("print %s %s: %w", kind, r.name, err)
	}
	u := unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		return u, fmt.Errorf("print %s %s: %w", kind, r.name, err)
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(r.name)
	if r.namespace != "" {
		u.SetNamespace(r.namespace)
	}
	return u, nil
}
