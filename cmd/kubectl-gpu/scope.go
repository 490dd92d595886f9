// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
)

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
		return fmt.Errorf("read the kubeconfig: %w", err)
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
