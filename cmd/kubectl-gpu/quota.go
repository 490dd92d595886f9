// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nobudgets

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

func addBudgets(root *cobra.Command, f *factory) { root.AddCommand(newQuota(f)) }

func newQuota(f *factory) *cobra.Command {
	var s scope
	entries := false
	c := &cobra.Command{
		Use:   "quota",
		Short: "Show the GPU budgets of namespaces, and their use",
		Long: "Show the GPU budgets of namespaces with their use, and the use of namespaces without one.\n" +
			"A whole GPU counts as 1, a group as its GPUs, a partition or a share as its part of a GPU. Claims that " +
			"wait count\n" +
			"as the largest devices that they could get.\n" +
			"With --resource-quota, print a ResourceQuota with an entry for each class that hands out GPUs. It keeps " +
			"the limits\n" +
			"of the namespace's ResourceQuotas; classes without one get 0. A class that is made later needs an entry " +
			"too.",
		Example: "  kubectl gpu quota -A\n  kubectl gpu quota -n team-a --resource-quota | kubectl apply -f -",
	}
	o := f.addOutput(c)
	s.addNamespaceFlags(f, o, c)
	c.Flags().BoolVar(&entries, "resource-quota", false, "Print a ResourceQuota of the namespace with all classes.")
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		if entries && s.all {
			return usageError{fmt.Errorf("--resource-quota is for one namespace, not for --all-namespaces")}
		}
		if entries {
			return f.printEntries(ctx, s.namespace)
		}
		all, err := f.load(ctx, want{claims: true, classes: true, quotas: true})
		if err != nil {
			return err
		}
		empty := s.none("GPU budgets or claims of driver " + f.driver)
		if all.Failed(read.ResourceSlices) {
			empty = "No GPU budgets found; the use of namespaces without one is not known."
			fmt.Fprintln(f.ErrOut, "note: the use of namespaces without a GPU budget is not shown, because it needs "+
				"ResourceSlices")
		}
		var rows []record
		for _, q := range view.Quotas(ctx, all.Objects, all.Classes, all.Budgets) {
			if !s.all && q.Namespace != s.namespace {
				continue
			}
			hard, ratio := "-", "-"
			if q.Hard != nil {
				hard = amount(q.Limit, *q.Hard)
				if *q.Hard > 0 {
					ratio = fmt.Sprintf("%.0f%%", 100*q.Used / *q.Hard)
				}
			}
			rows = append(rows, record{namespace: q.Namespace, name: q.Limit, object: q, cells: []any{
				q.Namespace, q.Limit, cmp.Or(q.Model, "*"), amount(q.Limit, q.Used), hard, ratio,
			}})
		}
		return o.print("Quota", "NAMESPACE,LIMIT,MODEL,USED,HARD,USE", rows, empty)
	})
	return c
}

// amount prints a number of GPUs, or bytes in GiB.
func amount(limit string, n float64) string {
	if limit == "memory" {
		return strconv.FormatFloat(n/(1<<30), 'f', 1, 64) + "Gi"
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// printEntries prints a ResourceQuota with all classes. It prints nothing if it cannot read the classes and the limits:
// an entry of 0 in place of a limit would refuse all claims.
func (f *factory) printEntries(ctx context.Context, namespace string) error {
	all, err := f.load(ctx, want{needSlices: true, classes: true})
	if err != nil {
		return err
	}
	if !all.Complete(read.DeviceClasses) {
		return fmt.Errorf("list the classes of the ResourceQuota: %s", strings.Join(all.Unseen, "; "))
	}
	quotas, err := all.client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the ResourceQuotas of namespace %s, whose limits stay: %w", namespace, err)
	}
	classes := view.QuotaClasses(all.Objects, all.Classes)
	hard := corev1.ResourceList{}
	for _, class := range classes {
		hard[view.QuotaEntry(class.Name)] = resource.MustParse("0")
	}
	kept := map[corev1.ResourceName]bool{}
	for _, q := range quotas.Items {
		for name, n := range q.Spec.Hard {
			// Kubernetes enforces each of several quotas, so the smallest limit holds.
			if least, ours := hard[name]; ours && (!kept[name] || n.Cmp(least) < 0) {
				hard[name], kept[name] = n, true
			}
		}
	}
	out, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "ResourceQuota",
		"metadata":   map[string]any{"name": "gpu-classes", "namespace": namespace},
		"spec":       corev1.ResourceQuotaSpec{Hard: hard},
	})
	if err != nil {
		return err
	}
	_, err = f.Out.Write(out)
	return err
}
