// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/show/view"
)

func newDoctor(f *factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Check the driver, its nodes and claims",
		Long: "Check what the API shows: plugins, slices without a plugin, the controller and its webhook, the API server's\n" +
			"features, known faults of the scheduler's version, unhealthy GPUs and advice about others, leaked claims, cordons in\n" +
			"part, a device plugin beside the driver, dcgm-exporter twice.\n" +
			"Exit code 0: all is well. 1: a warning, or an error of the command. 2: a problem, or an invalid command line.",
		Example: "  kubectl gpu doctor\n  kubectl gpu doctor n1",
	}
	c.ValidArgsFunction = f.completeNodes
	o := f.addOutput(c)
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		d, _, err := f.diagnosis(ctx, args)
		if err != nil {
			return err
		}
		found := view.Findings(d, args)
		var rows []record
		worst := 0
		for i, one := range found {
			worst = max(worst, slices.Index([]view.Level{view.Info, view.Warning, view.Problem}, one.Level))
			rows = append(rows, record{name: fmt.Sprintf("%03d", i), object: one, cells: []any{string(one.Level), one.Subject, one.Message}})
		}
		if err := o.print("Finding", "LEVEL,SUBJECT,MESSAGE", rows, "Nothing to check."); err != nil {
			return err
		}
		if worst > 0 {
			return exitCode(worst)
		}
		return nil
	})
	return c
}

// diagnosis reads the objects to check, and the metrics of the driver's pods: of the plugins of the named nodes, or of all.
func (f *factory) diagnosis(ctx context.Context, nodes []string) (view.Diagnosis, *objects, error) {
	all, err := f.load(ctx, want{claims: true, classes: true, nodes: true, pods: true, rules: true})
	if err != nil {
		return view.Diagnosis{}, nil, err
	}
	plugins := slices.DeleteFunc(view.PluginPods(all.Pods), func(p corev1.Pod) bool {
		return len(nodes) > 0 && !slices.Contains(nodes, p.Spec.NodeName)
	})
	measured, controllers := scrape(ctx, all.client, plugins, nodeOf), scraped{}
	if len(nodes) == 0 {
		controllers = scrape(ctx, all.client, view.ControllerPods(all.Pods), nameOf)
	}
	server := "" // Without a version the finding says that it could not be read.
	version, versionErr := all.client.Discovery().ServerVersionWithContext(ctx)
	if versionErr == nil {
		server = version.GitVersion
	}
	return view.Diagnosis{
		Objects: all.Objects, Classes: all.Classes, CoreNodes: all.CoreNodes, Pods: all.Pods, RuleVersion: all.RuleVersion, Now: f.now(),
		ServerVersion: server, ServerVersionError: versionErr,
		SeenClaims: !all.forbidden["ResourceClaims"], SeenNodes: !all.forbidden["Nodes"], SeenPods: !all.forbidden["Pods"],
		SeenClasses: !all.forbidden["DeviceClasses"], Plugins: measured.samples, Unmeasured: measured.missing, Controllers: controllers.samples,
	}, all, nil
}
