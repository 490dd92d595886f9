// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"gpu-dra-driver/pkg/show/view"
)

func newDoctor(f *factory) *cobra.Command {
	verbose := false
	c := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Check the driver, its nodes and claims",
		Long: "Check what the API shows: plugins, slices without a plugin, the controller and its webhook, the API server's\n" +
			"features, known faults of the scheduler's version, unhealthy GPUs and advice about others, leaked claims, cordons in\n" +
			"part, ResourceQuotas with holes, a device plugin or NVIDIA's DRA driver beside the driver, dcgm-exporter twice.\n" +
			"A check that a missing right or metric prevents has the level \"not checked\".\n" +
			"Problems come first, and equal findings are one line. Other formats than tables have a finding for each subject.\n" +
			"Exit code 0: all was checked, and is well. 1: a warning, a part that was not checked, or an error of the command.\n" +
			"2: a problem, or an invalid command line.",
		Example: "  kubectl gpu doctor\n  kubectl gpu doctor n1",
	}
	c.ValidArgsFunction = f.completeNodes
	o := f.addOutput(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "Show also what is ok.")
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		all, err := f.diagnosis(ctx, args)
		if err != nil {
			return err
		}
		findings := view.Findings(all.Diagnosis, args)
		var rows []record
		worst := 0
		for i, one := range findings {
			worst = max(worst, one.Level.Weight())
			rows = append(rows, record{name: fmt.Sprintf("%03d", i), object: one})
		}
		if o.table() {
			rows = grouped(findings, verbose)
		}
		if len(rows) > 0 || len(findings) == 0 {
			if err := o.print("Finding", "LEVEL,SUBJECT,MESSAGE", rows, "Nothing to check."); err != nil {
				return err
			}
		}
		if o.table() && len(findings) > 0 {
			hint := ""
			if !verbose {
				hint = " (-v shows them)"
			}
			worst := view.GroupFindings(findings)[0].Level
			fmt.Fprintln(f.Out, worst.Colour().Paint(f.colours(), view.Summary(findings))+hint)
		}
		if worst > 0 {
			return exitCode(worst)
		}
		return nil
	})
	return c
}

// grouped returns a row for each group of equal findings, without those that are ok unless the user wants all.
func grouped(findings []view.Finding, verbose bool) (rows []record) {
	for _, g := range view.GroupFindings(findings) {
		if verbose || g.Level != view.Info {
			rows = append(rows, record{cells: []any{coloured{string(g.Level), g.Level.Colour()}, g.Subject(), g.Message}})
		}
	}
	return rows
}

// diagnosis reads the objects to check, and the metrics of the driver's pods: of the plugins of the named nodes, or of all.
func (f *factory) diagnosis(ctx context.Context, nodes []string) (*objects, error) {
	o, err := f.load(ctx, want{claims: true, classes: true, nodes: true, pods: true, rules: true, quotas: true, webhooks: true, gpuClusters: true})
	if err != nil {
		return nil, err
	}
	plugins := slices.DeleteFunc(view.PluginPods(o.Pods), func(p corev1.Pod) bool {
		return len(nodes) > 0 && !slices.Contains(nodes, p.Spec.NodeName)
	})
	measured := scrape(ctx, o.client, plugins, nodeOf)
	o.Plugins, o.Unmeasured = measured.samples, measured.missing
	if len(nodes) == 0 {
		controllers := scrape(ctx, o.client, view.ControllerPods(o.Pods), nameOf)
		o.Controllers, o.UnmeasuredControllers = controllers.samples, controllers.missing
	}
	o.ServerVersion, o.ServerVersionError = serverVersion(ctx, o.client)
	return o, nil
}

func serverVersion(ctx context.Context, client kubernetes.Interface) (string, error) {
	version, err := client.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		return "", err
	}
	return version.GitVersion, nil
}
