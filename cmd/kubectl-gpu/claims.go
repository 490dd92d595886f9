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
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"gpu-dra-driver/pkg/show/view"
)

func newClaims(f *factory) *cobra.Command {
	var s scope
	c := &cobra.Command{
		Use:   "claims",
		Short: "List claims with their devices, shares and leaks",
		Long: "List the ResourceClaims that have devices of the driver, and those that wait for some.\n" +
			"A claim is pending, reserved (for its pods or PodGroup), unreserved (it has devices that no pod uses)\n" +
			"deleting, or ending (its pods are terminating). A device marked with ! is in no ResourceSlice.",
		Example: "  kubectl gpu claims -A --sort-by age\n  kubectl gpu claims -n team-a -o wide",
	}
	o := f.addOutput(c)
	o.sortable(c, "namespace", "name", "state", "node", "devices", "age")
	s.addFlags(f, o, c)
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		all, err := f.load(ctx, want{claims: true, classes: true, pods: true})
		if err != nil {
			return err
		}
		s.filter(all)
		var rows []record
		for _, claim := range view.Claims(all.Objects, all.Classes) {
			devices := slices.Clone(claim.Devices)
			for i, d := range devices {
				if slices.Contains(claim.Unpublished, d) {
					devices[i] = d + "!"
				}
			}
			names := coloured{cmp.Or(strings.Join(devices, ","), "-"), 0}
			if len(claim.Unpublished) > 0 {
				names.colour = view.Red
			}
			var age *float64
			if !claim.Created.IsZero() {
				age = number(f.now().Sub(claim.Created.Time).Seconds())
			}
			rows = append(rows, record{namespace: claim.Namespace, name: claim.Name, object: claim, cells: []any{
				claim.Namespace, claim.Name, coloured{string(claim.State), claim.Colour()}, cmp.Or(claim.Node, "-"),
				names,
				fmt.Sprint(claim.Shares), cmp.Or(strings.Join(claim.Pods, ","), "-"), f.age(claim.Created),
			}, order: map[string]any{
				"namespace": claim.Namespace, "name": claim.Name, "state": string(claim.State), "node": claim.Node,
				"devices": number(len(devices)), "age": age,
			}})
		}
		const columns = "NAMESPACE,NAME,STATE,NODE,DEVICES,+SHARES,PODS,AGE"
		return o.print("Claim", columns, rows, s.none("claims of driver "+f.driver))
	})
	return c
}

func (f *factory) age(t metav1.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(f.now().Sub(t.Time))
}

func newLsPods(f *factory) *cobra.Command {
	var s scope
	c := &cobra.Command{
		Use:   "pods",
		Short: "List the pods with GPUs, and their devices",
		Long: "List the pods for which claims are reserved, with the claims and their devices.\n" +
			"A PodGroup stands for its pods, as podgroup/NAME.",
		Example: "  kubectl gpu ls pods -A",
	}
	o := f.addOutput(c)
	o.sortable(c, "namespace", "pod", "node", "devices")
	s.addFlags(f, o, c)
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		all, err := f.load(ctx, want{claims: true})
		if err != nil {
			return err
		}
		s.filter(all)
		var rows []record
		for _, p := range view.Pods(all.Objects) {
			rows = append(rows, record{
				namespace: p.Namespace,
				name:      p.Name,
				object:    p,
				cells: []any{
					p.Namespace, p.Name, cmp.Or(p.Node, "-"), strings.Join(p.Claims, ","), strings.Join(p.Devices, ","),
				},
				order: map[string]any{
					"namespace": p.Namespace,
					"pod":       p.Name,
					"node":      p.Node,
					"devices":   number(len(p.Devices)),
				},
			})
		}
		return o.print("Pod", "NAMESPACE,POD,NODE,CLAIMS,DEVICES", rows,
			s.none("pods with devices of driver "+f.driver))
	})
	return c
}

// scope selects claims by namespace and labels.
type scope struct {
	all      bool
	selector string

	namespace string
	labels    labels.Selector
}

func (s *scope) addFlags(f *factory, o *output, c *cobra.Command) {
	s.addNamespaceFlags(f, o, c)
	c.Flags().StringVarP(&s.selector, "selector", "l", "", "List only those of claims with these labels.")
}

func (s *scope) addNamespaceFlags(f *factory, o *output, c *cobra.Command) {
	c.Args = cobra.NoArgs
	c.PreRunE = func(*cobra.Command, []string) error { return s.complete(f, o) }
	c.Flags().BoolVarP(&s.all, "all-namespaces", "A", false, "List those of all namespaces.")
}

// complete checks the flags before the first request.
func (s *scope) complete(f *factory, o *output) (err error) {
	if s.labels, err = labels.Parse(s.selector); err != nil {
		return usageError{err}
	}
	if s.namespace, err = f.namespace(); err != nil {
		return err
	}
	return o.validate()
}

func (s *scope) filter(o *objects) {
	o.Claims = slices.DeleteFunc(o.Claims, func(c resourceapi.ResourceClaim) bool {
		return !s.all && c.Namespace != s.namespace || !s.labels.Matches(labels.Set(c.Labels))
	})
}

func (s *scope) none(what string) string {
	if s.all {
		return "No " + what + " found."
	}
	return "No " + what + " found in namespace " + s.namespace + "."
}
