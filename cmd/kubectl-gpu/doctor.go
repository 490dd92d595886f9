// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"gpu-dra-driver/pkg/show/view"
)

func newDoctor(f *factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Check the driver, its nodes and claims",
		Long: "Check what the API shows: plugins, slices without a plugin, the controller and its webhook, the API\n" +
			"server's features, known faults of the scheduler's version, unhealthy GPUs and advice about others,\n" +
			"leaked claims, cordons in part, ResourceQuotas with holes, namespaces with admin access, a device " +
			"plugin\n" +
			"or NVIDIA's DRA driver beside the driver, dcgm-exporter twice, pods that run without the GPUs that " +
			"they\n" +
			"ask for.\n" +
			"A check that a missing right or metric prevents has the level \"not checked\".\n" +
			"Problems come first, and equal findings are one line. Other formats than tables have a finding for " +
			"each\n" +
			"subject.\n" +
			"Exit code 0: all was checked, and is well. 1: a warning, a part that was not checked, or an error of " +
			"the\n" +
			"command.\n" +
			"2: a problem, or an invalid command line.",
		Example: "  kubectl gpu doctor\n  kubectl gpu doctor n1\n  kubectl gpu doctor --watch",
	}
	c.ValidArgsFunction = f.completeNodes
	d := &checkup{output: f.addOutput(c)}
	c.Flags().BoolVarP(&d.verbose, "verbose", "v", false, "Show also what is ok.")
	c.Flags().BoolVarP(&d.watch, "watch", "w", false, "Check again and again, and print the findings when they change.")
	c.Flags().DurationVar(&d.interval, "interval", 10*time.Second,
		"Least pause between two checks of --watch. After a check that took long, the pause is four times its length.")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case !d.watch:
			return d.once(c.Context(), args)
		case !d.table():
			return usageError{errors.New("--watch prints tables only")}
		case d.interval <= 0:
			return usageError{fmt.Errorf("--interval=%s is not a positive time", d.interval)}
		}
		return d.repeat(c.Context(), args)
	}
	return c
}

// checkup finds and prints what is wrong.
type checkup struct {
	*output
	verbose, watch bool
	interval       time.Duration
}

func (d *checkup) once(ctx context.Context, args []string) error {
	findings, err := d.find(ctx, args)
	if err != nil {
		return err
	}
	return d.show(findings)
}

func (d *checkup) find(ctx context.Context, args []string) ([]view.Finding, error) {
	ctx, cancel := d.bounded(ctx, defaultTimeout)
	defer cancel()
	all, err := d.diagnosis(ctx, args)
	if err != nil {
		return nil, err
	}
	return view.Findings(all.Diagnosis, args), nil
}

// ages are times in findings, which change with each check.
var ages = regexp.MustCompile(`\b([0-9]+[smhdy])+\b`)

// repeat shows findings whenever they change, until the user leaves. The last ones give the exit code.
func (d *checkup) repeat(ctx context.Context, args []string) error {
	quiet, out := *d.factory, *d.output
	quiet.ErrOut = io.Discard // A note with each check says no more than the findings.
	out.factory = &quiet
	silent := &checkup{output: &out}
	last, shown := "", error(nil)
	for {
		began := d.now()
		findings, err := silent.find(ctx, args)
		if ctx.Err() != nil {
			return shown
		}
		now := fmt.Sprint(err)
		if err == nil {
			now = ages.ReplaceAllString(fmt.Sprint(grouped(findings, d.verbose), view.Summary(findings)), "")
		}
		if now != last {
			last = now
			fmt.Fprintf(d.Out, "%s\n", began.Format(time.TimeOnly))
			if err == nil {
				err = d.show(findings)
			} else {
				fmt.Fprintf(d.ErrOut, "not checked: %s\n", sentence(err))
				err = exitCode(1)
			}
			var code exitCode
			if shown = err; err != nil && !errors.As(err, &code) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return shown
		case <-time.After(max(d.interval, pauseFor*d.now().Sub(began))):
		}
	}
}

func (d *checkup) show(findings []view.Finding) error {
	var rows []record
	worst := 0
	for i, one := range findings {
		worst = max(worst, one.Level.Weight())
		rows = append(rows, record{name: fmt.Sprintf("%03d", i), object: one})
	}
	if d.table() {
		rows = grouped(findings, d.verbose)
	}
	if len(rows) > 0 || len(findings) == 0 {
		if err := d.print("Finding", "LEVEL,SUBJECT,MESSAGE", rows, "Nothing to check."); err != nil {
			return err
		}
	}
	if d.table() && len(findings) > 0 {
		hint := ""
		if !d.verbose {
			hint = " (-v shows them)"
		}
		worst := view.GroupFindings(findings)[0].Level
		fmt.Fprintln(d.Out, worst.Colour().Paint(d.colours(), view.Summary(findings))+hint)
	}
	if worst > 0 {
		return exitCode(worst)
	}
	return nil
}

// grouped returns a row for each group of equal findings, without those that are ok unless the user wants all.
func grouped(findings []view.Finding, verbose bool) (rows []record) {
	for _, g := range view.GroupFindings(findings) {
		if verbose || g.Level != view.Info {
			rows = append(rows,
				record{cells: []any{coloured{string(g.Level), g.Level.Colour()}, g.Subject(), g.Message}})
		}
	}
	return rows
}

// diagnosis reads the objects to check, and the metrics of the driver's pods: of the plugins of the named nodes, or of
// all.
func (f *factory) diagnosis(ctx context.Context, nodes []string) (*objects, error) {
	o, err := f.load(ctx, want{
		claims:       true,
		classes:      true,
		nodes:        true,
		pods:         true,
		rules:        true,
		quotas:       true,
		webhooks:     true,
		gpuClusters:  true,
		namespaces:   true,
		makers:       true,
		controlPlane: true,
	})
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
