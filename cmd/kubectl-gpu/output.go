// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"gpu-dra-driver/pkg/show/view"
)

// output has the flags of a command that prints rows.
type output struct {
	*factory
	flags     *genericclioptions.PrintFlags
	noHeaders bool
	// by is the word by which the user sorts the rows, one of words. Without it they stay in order.
	by    string
	words []string
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
	formats := append([]string{"table", "wide"}, o.flags.AllowedFormats()...)
	c.Flag("output").Usage = "Output format. One of: (" + strings.Join(formats, ", ") + ")."
	completeWith(c, "output", formats)
	return o
}

// completeWith has the shell complete the values of a flag.
func completeWith(c *cobra.Command, flag string, words []string) {
	err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // The flag exists, and has no other completion.
	}
}

// sortable adds the flag to sort rows, each of which has a value for each word.
func (o *output) sortable(c *cobra.Command, words ...string) {
	o.words = words
	c.Flags().StringVar(&o.by, "sort-by", "",
		"Sort by one of: ("+strings.Join(words, ", ")+"). Numbers begin with the largest.")
	completeWith(c, "sort-by", words)
}

// table reports whether the output is for people.
func (o *output) table() bool {
	format := *o.flags.OutputFormat
	return (format == "" || format == "table" || format == "wide") &&
		*o.flags.TemplatePrinterFlags.TemplateArgument == ""
}

// validate returns an error for an unknown format or order.
func (o *output) validate() error {
	if o.by != "" && !slices.Contains(o.words, o.by) {
		return usageError{fmt.Errorf("--sort-by=%s: it must be one of %s", o.by, strings.Join(o.words, ", "))}
	}
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
	// cells are texts, some of them coloured.
	cells []any
	// order has a value for each word by which the user can sort: a text, or a number that is nil if it was not
	// measured.
	order map[string]any
}

// coloured is a cell of a table.
type coloured struct {
	text   string
	colour view.Colour
}

func number[T int | int64 | float64](n T) *float64 { return new(float64(n)) }

// sort sorts records as the user asks.
func (o *output) sort(records []record) []record {
	if o.by == "" {
		return records
	}
	return slices.SortedStableFunc(slices.Values(records), func(a, b record) int {
		if number, ok := a.order[o.by].(*float64); ok {
			return view.Larger(number, b.order[o.by].(*float64))
		}
		return cmp.Compare(a.order[o.by].(string), b.order[o.by].(string))
	})
}

// apiVersion stands in the printed objects. The API server does not know them.
const apiVersion = "cli.gpu.nvidia.com/v1alpha1"

// print writes records in the format that the user chose. columns are the headers of the table, divided by commas; -o
// wide only shows those with a plus. none is printed in place of an empty table.
func (o *output) print(kind, columns string, records []record, none string) error {
	records = o.sort(records)
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
			t.Rows = append(t.Rows, metav1.TableRow{Cells: plain(r.cells)})
		}
		options := printers.PrintOptions{NoHeaders: o.noHeaders, Wide: *o.flags.OutputFormat == "wide"}
		var text bytes.Buffer
		if err := printers.NewTablePrinter(options).PrintObj(t, &text); err != nil {
			return err
		}
		for line := range strings.Lines(text.String()) {
			switch {
			case !o.colours():
			case !options.NoHeaders:
				options.NoHeaders = true
				line = view.Grey.Paint(true, strings.TrimSuffix(line, "\n")) + "\n"
			case len(records) > 0:
				line = paint(line, records[0].cells, t.ColumnDefinitions, options.Wide)
				records = records[1:]
			}
			if _, err := o.Out.Write([]byte(line)); err != nil {
				return err
			}
		}
		return nil
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

func plain(cells []any) (out []any) {
	for _, c := range cells {
		if one, ok := c.(coloured); ok {
			c = one.text
		}
		out = append(out, c)
	}
	return out
}

// paint colours the cells in a line of a table. The table was laid out before, because escape sequences have no width.
// From a cell on that the printer has changed, the line stays as it is.
func paint(line string, cells []any, columns []metav1.TableColumnDefinition, wide bool) string {
	out := ""
	for i, c := range cells {
		if columns[i].Priority > 0 && !wide {
			continue
		}
		cell, ok := c.(coloured)
		if !ok {
			cell.text = fmt.Sprint(c)
		}
		text := strings.TrimLeft(line, " ")
		if !strings.HasPrefix(text, cell.text) {
			break
		}
		out += line[:len(line)-len(text)] + cell.colour.Paint(true, cell.text)
		line = text[len(cell.text):]
	}
	return out + line
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
