// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/show/view"
)

func newQuota(f *factory) *cobra.Command {
	var s scope
	entries := false
	c := &cobra.Command{
		Use:   "quota",
		Short: "Show the GPU budgets of namespaces, and their use",
		Long: "Show the GPU budgets of namespaces with their use, and the use of namespaces without one.\n" +
			"A whole GPU counts as 1, a group as its GPUs, a partition or a share as its part of a GPU. Claims that wait count\n" +
			"as the largest devices that they could get.\n" +
			"With --resource-quota, print a ResourceQuota with an entry for each class that hands out GPUs. It keeps the limits\n" +
			"of the namespace's ResourceQuotas; classes without one get 0. A class that is made later needs an entry too.",
		Example: "  kubectl gpu quota -A\n  kubectl gpu quota -n team-a --resource-quota | kubectl apply -f -",
	}
	o := f.addOutput(c)
	s.addNamespaceFlags(f, o, c)
	c.Flags().BoolVar(&entries, "resource-quota", false, "Print a ResourceQuota of the namespace with all classes.")
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		if entries && s.all {
			return usageError{fmt.Errorf("--resource-quota is for one namespace, not for --all-namespaces")}
		}
		all, err := f.load(ctx, want{claims: true, classes: true, quotas: true})
		if err != nil {
			return err
		}
		if entries {
			return f.printEntries(all, s.namespace)
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
		return o.print("Quota", "NAMESPACE,LIMIT,MODEL,USED,HARD,USE", rows, s.none("GPU budgets or claims of driver "+f.driver))
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

// printEntries prints a ResourceQuota with all classes.
func (f *factory) printEntries(all *objects, namespace string) error {
	classes := view.QuotaClasses(all.Objects, all.Classes)
	hard := corev1.ResourceList{}
	for _, class := range classes {
		hard[view.QuotaEntry(class.Name)] = resource.MustParse("0")
	}
	for _, q := range all.Quotas {
		for name, n := range q.Spec.Hard {
			named := slices.ContainsFunc(classes, func(c resourceapi.DeviceClass) bool { return view.QuotaEntry(c.Name) == name })
			if q.Namespace == namespace && named {
				hard[name] = n
			}
		}
	}
	out, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "gpu-classes", "namespace": namespace},
		"spec": corev1.ResourceQuotaSpec{Hard: hard},
	})
	if err != nil {
		return err
	}
	_, err = f.Out.Write(out)
	return err
}
