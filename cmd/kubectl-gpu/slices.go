// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

func newSlices(f *factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "slices [NODE...]",
		Short: "List ResourceSlices, merged by pool",
		Long: "List the driver's pools: generation, slices, devices. A pool is complete if all slices of its newest " +
			"generation\n" +
			"exist; claims get no device of an incomplete pool. -o json and yaml print the ResourceSlices as they " +
			"are.\n" +
			"\n" +
			"--board prints the slices of a node that does not exist yet, as for autoscalers. The assumptions about " +
			"this node go to the\n" +
			"error output.",
		Example: "  kubectl gpu slices\n  kubectl gpu slices n1 -o yaml\n  kubectl gpu slices --board hgx-h100",
	}
	c.ValidArgsFunction = f.completeNodes
	o := f.addOutput(c)
	board := addBoard(c, "Print the slices of a new node with this board instead.")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *board != "" {
			return f.predict(o, *board, args)
		}
		if !o.table() {
			return f.printSlices(c.Context(), o, args)
		}
		ctx, cancel := f.bounded(c.Context(), defaultTimeout)
		defer cancel()
		all, err := f.load(ctx, want{needSlices: true})
		if err != nil {
			return err
		}
		var rows []record
		for _, p := range view.Pools(all.Slices) {
			if len(args) > 0 && !slices.Contains(args, p.Node) {
				continue
			}
			rows = append(rows, record{name: p.Name, object: p, cells: []any{
				p.Name, p.Node, fmt.Sprint(p.Generation), fmt.Sprintf("%d/%d", p.Slices, p.Expected),
				fmt.Sprint(p.Devices), view.YesNo(p.Slices == p.Expected),
				fmt.Sprint(p.Outdated),
			}})
		}
		for _, driver := range slices.Sorted(maps.Keys(all.OtherSlices)) {
			fmt.Fprintf(f.ErrOut, "note: %d slices of driver %s are not listed\n", all.OtherSlices[driver], driver)
		}
		const columns = "POOL,NODE,GENERATION,SLICES,DEVICES,COMPLETE,+OUTDATED"
		return o.print("Pool", columns, rows, "No ResourceSlices of driver "+f.driver+" found.")
	}
	return c
}

// printSlices prints the ResourceSlices of nodes, or of all, as they come.
func (f *factory) printSlices(ctx context.Context, o *output, nodes []string) error {
	w, err := o.sliceWriter(f.Out)
	if err != nil {
		return err
	}
	r, err := f.reader()
	if err != nil {
		return err
	}
	wanted := fields.Set{resourceapi.ResourceSliceSelectorDriver: f.driver}
	if len(nodes) == 1 {
		wanted[resourceapi.ResourceSliceSelectorNodeName] = nodes[0]
	}
	w.driver, w.nodes = f.driver, nodes
	ctx, progress, cancel := f.whileProgressing(ctx, defaultTimeout)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: wanted.AsSelector().String(), Limit: pageSize}
	for one, err := range read.Slices(ctx, r.client, options, w.convert) {
		if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			err = context.DeadlineExceeded
		}
		if err != nil {
			return slicesError(err)
		}
		if err := w.write(one); err != nil {
			return err
		}
		progress()
	}
	return w.end()
}

// sliceWriter prints a ResourceSliceList, of which it holds few slices at a time. Only templates need all of them.
type sliceWriter struct {
	out     io.Writer
	printer printers.ResourcePrinter
	format  string
	// driver and nodes select slices. Without nodes, all are selected.
	driver  string
	nodes   []string
	shapes  pool.Shapes
	texts   jsonTexts
	written int
	all     []unstructured.Unstructured
}

func (o *output) sliceWriter(out io.Writer) (*sliceWriter, error) {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return nil, usageError{err}
	}
	return &sliceWriter{out: out, printer: printer, format: *o.flags.OutputFormat}, nil
}

// printable is a slice as text in JSON or YAML, or as an object. One that is not selected is empty.
type printable struct {
	text   []byte
	object unstructured.Unstructured
}

// convert converts a slice in protobuf. It is safe for concurrent use.
func (w *sliceWriter) convert(raw []byte) (out printable, err error) {
	p, err := w.shapes.Pack(raw)
	if err != nil || p.Shape.Spec.Driver != w.driver || len(w.nodes) > 0 && !slices.Contains(w.nodes, p.Node) {
		return out, err
	}
	var s resourceapi.ResourceSlice
	if w.format == "json" {
		if s.ObjectMeta, err = pool.Metadata(raw); err != nil {
			return out, err
		}
		if out.text = w.texts.of(listed(&s), p); out.text != nil {
			return out, nil
		}
	}
	s = resourceapi.ResourceSlice{}
	if err := s.Unmarshal(raw); err != nil {
		return out, err
	}
	return w.render(&s)
}

func (w *sliceWriter) render(s *resourceapi.ResourceSlice) (out printable, err error) {
	out.object.Object = fieldsOf(listed(s))
	switch w.format {
	case "json":
		out.text, err = json.MarshalIndent(out.object.Object, jsonItem, jsonIndent)
	case "yaml":
		out.text, err = yaml.Marshal([]any{out.object.Object})
	}
	if err != nil {
		return out, fmt.Errorf("print ResourceSlice %s: %w", s.Name, err)
	}
	return out, nil
}

func (w *sliceWriter) write(one printable) (err error) {
	switch {
	case one.text == nil && one.object.Object == nil:
		return nil
	case w.format == "name":
		return w.printer.PrintObj(&one.object, w.out)
	case w.format == "json":
		const head = "{\n    \"apiVersion\": \"resource.k8s.io/v1\",\n    \"items\": [\n" + jsonItem
		_, err = io.WriteString(w.out, w.begin(head, ",\n"+jsonItem))
	case w.format == "yaml":
		_, err = io.WriteString(w.out, w.begin("apiVersion: resource.k8s.io/v1\nitems:\n", ""))
	default:
		w.all = append(w.all, one.object)
	}
	if err == nil {
		_, err = w.out.Write(one.text)
	}
	return err
}

// begin returns the text before the first slice, or before another one.
func (w *sliceWriter) begin(first, other string) string {
	w.written++
	if w.written == 1 {
		return first
	}
	return other
}

func (w *sliceWriter) end() error {
	switch {
	case w.format == "name":
		return nil
	case w.written == 0:
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "resource.k8s.io/v1",
			"kind": "ResourceSliceList"}, Items: w.all}
		return w.printer.PrintObj(list, w.out)
	case w.format == "json":
		_, err := io.WriteString(w.out, "\n    ],\n    \"kind\": \"ResourceSliceList\"\n}\n")
		return err
	}
	_, err := io.WriteString(w.out, "kind: ResourceSliceList\n")
	return err
}
