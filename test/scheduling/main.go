// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command scheduling measures the real kube-scheduler with the slices of many nodes, beside the slices of plain nodes:
// eight devices without counters, shares, groups and partitions. etcd and an API server run beside it; there are no
// kubelets. The rates of two rows can be compared, but not those of two machines.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/command"
	"gpu-dra-driver/test/table"
)

type options struct {
	nodes, pods, waiting, unsatisfiable int
	percentage, parallelism, cut, level int
	seed                                uint64
	limit, filterTimeout                time.Duration
	settings, workloads, uses           string
	onenode, kubernetes                 string
}

func main() { command.Main("scheduling", run) }

func run(ctx context.Context, args []string, out, log io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("scheduling", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 100, "nodes of eight H100")
	flags.IntVar(&o.pods, "pods", 60, "pods of a cell, if they fit")
	flags.IntVar(&o.waiting, "waiting", 16, "pods that wait for the scheduler at a time")
	flags.IntVar(&o.unsatisfiable, "unsatisfiable", 0, "other pods, whose two requests no node can satisfy together")
	flags.DurationVar(&o.filterTimeout, "filter-timeout", 0, "filterTimeout of the scheduler's plugin DynamicResources, 10s by default")
	flags.IntVar(&o.percentage, "percentage", 0, "percentageOfNodesToScore of the scheduler")
	flags.IntVar(&o.parallelism, "parallelism", 16, "parallelism of the scheduler")
	flags.IntVar(&o.cut, "cut", 10, "percentage of the nodes that publish more than GPUs, for settings with other devices on some nodes")
	flags.IntVar(&o.level, "level", 50, "percentage of the GPUs that the pods of the mixed cluster use")
	flags.Uint64Var(&o.seed, "seed", 1, "selects the order of the mixed cluster's pods")
	flags.DurationVar(&o.limit, "limit", 5*time.Second, "the longest time of a cell; pods bound by then count")
	flags.StringVar(&o.settings, "settings", "plain,all,1g,auto,auto-1g,whole,gpus,some-all,some-1g", "published devices")
	flags.StringVar(&o.workloads, "workloads", "whole,1g,share,group,four,extended", "kinds of pods, none for pods without devices; mixed for all of them, arriving and leaving")
	flags.StringVar(&o.uses, "used", "empty,half,95", "devices that claims hold before")
	flags.StringVar(&o.onenode, "onenode", "bin/onenode", "program that knows where Kubernetes is")
	flags.StringVar(&o.kubernetes, "kubernetes", "v1.37.1", "version of Kubernetes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.nodes < 20 {
		return errors.New("-nodes: 20 or more are necessary, so that a group of GPUs is free in a cluster of which 95 % is used")
	}
	if o.cut < 0 || o.cut > 100 || o.level < 1 || o.level > 100 {
		return errors.New("-cut and -level are percentages, and -level is at least 1")
	}
	began := time.Now()
	dir, err := os.MkdirTemp("", "bench-scheduling-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &bench{log: log, controlPlane: &controlPlane{options: o, dir: dir, cancel: cancel}}
	if o.filterTimeout > 0 {
		b.profile = fmt.Sprintf("profiles: [{pluginConfig: [{name: DynamicResources, args: {filterTimeout: %v}}]}]", o.filterTimeout)
	}
	if b.programs, err = programPaths(ctx, o.onenode, o.kubernetes); err != nil {
		return err
	}
	defer b.stop()
	if err := b.all(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return err
	}
	fmt.Fprintf(out, "%d nodes of eight H100, Kubernetes %s, %v\n", o.nodes, o.kubernetes, time.Since(began).Round(time.Second))
	_, err = io.WriteString(out, b.format())
	return err
}

type bench struct {
	*controlPlane
	log     io.Writer
	results []result
}

// selected reports whether a list of flags has a name. Names of uses can lack their percent sign.
func selected(list, name string) bool {
	return slices.Contains(strings.Split(list, ","), strings.TrimSuffix(name, " %"))
}

func (b *bench) all(ctx context.Context) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.createNodes(ctx); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	for _, s := range settings {
		if !selected(b.settings, s.name) {
			continue
		}
		if err := b.with(ctx, s); err != nil {
			return fmt.Errorf("setting %s: %w", s.name, err)
		}
	}
	return nil
}

// with measures a setting with a fresh scheduler.
func (b *bench) with(ctx context.Context, s setting) error {
	published, err := b.publish(ctx, s)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	// The first pod of a scheduler is bound once it has read all slices.
	began := time.Now()
	var args []string
	mix := selected(b.workloads, mixed) && slices.Contains(s.workloads, mixed)
	if mix {
		args = []string{"--v=3"} // attemptsIn reads these lines.
	}
	scheduler, err := b.startScheduler(args...)
	if err != nil {
		return err
	}
	defer scheduler.stop()
	bindings, _, err := b.bind(ctx, alike("first", workloads[0], 1), time.Minute)
	if err != nil || len(bindings) == 0 {
		return errors.Join(err, fmt.Errorf("the scheduler bound no pod in a minute: %s", scheduler.tail()))
	}
	started := time.Since(began)
	if err := b.clean(ctx); err != nil {
		return err
	}
	for _, w := range workloads {
		if !selected(b.workloads, w.name) || !slices.Contains(s.workloads, w.name) {
			continue
		}
		for _, u := range uses {
			if !selected(b.uses, u.name) {
				continue
			}
			r := result{setting: s.name, workload: w.name, used: u.name, start: started}
			if w.name == "group" {
				r.like = w.instead // A group of plain devices is four by an attribute.
			}
			r, err := b.cell(ctx, scheduler, r, w, u, published)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, u.name, err)
			}
			b.add(r)
		}
	}
	if !mix {
		return nil
	}
	r := result{setting: s.name, workload: mixed, used: fmt.Sprintf("%d %%", b.level), start: started}
	all, err := b.mixed(ctx, scheduler, r, s, published)
	if err != nil {
		return fmt.Errorf("%s: %w", mixed, err)
	}
	b.add(all...)
	return nil
}

func (b *bench) add(results ...result) {
	for _, r := range results {
		b.results = append(b.results, r)
		fmt.Fprintf(b.log, "%-10s %-12s %-6s %4d of %4d pods, %.1f a second\n", r.setting, r.workload, r.used, r.bound, r.wanted, r.rate())
	}
}

func (b *bench) cell(ctx context.Context, scheduler *process, r result, w workload, u use, published [][]*resourceapi.ResourceSlice) (result, error) {
	free, err := b.hold(ctx, w, u, published)
	if err != nil {
		return r, fmt.Errorf("allocate devices: %w", err)
	}
	r, err = b.measure(ctx, scheduler, r, w, free)
	return r, errors.Join(err, b.clean(ctx))
}

// format returns the table. A kind of pods of the mixed cluster has no CPU time and memory of its own.
func (b *bench) format() string {
	plain := map[string]result{}
	for _, r := range b.results {
		if r.setting == settings[0].name {
			plain[r.workload+r.used] = r
		}
	}
	var t table.Table
	t.Row("devices", "pods ask for", "used", "pods", "pods/s", "of plain", "p50", "p99", "CPU per pod", "memory", "start")
	for _, r := range b.results {
		of := plain[cmp.Or(r.like, r.workload)+r.used]
		ratio, p50, p99, perPod, memory, start := "-", "-", "-", "-", "-", "-"
		if r.bound > 0 {
			p50, p99 = r.p50.Round(time.Millisecond).String(), r.p99.Round(time.Millisecond).String()
		}
		if r.bound < r.wanted {
			p99 = "> " + p99 // Pods that still wait do not count.
		}
		if r.cpuPerPod > 0 {
			perPod = fmt.Sprintf("%.1f ms", float64(r.cpuPerPod.Microseconds())/1000)
			if of.cpuPerPod > 0 {
				perPod += fmt.Sprintf(", %.1f x", float64(r.cpuPerPod)/float64(of.cpuPerPod))
			}
		}
		if r.megabytes > 0 {
			memory, start = fmt.Sprintf("%d MB", r.megabytes), fmt.Sprintf("%.1f s", r.start.Seconds())
		}
		if of.rate() > 0 {
			ratio = fmt.Sprintf("%.2f", r.rate()/of.rate())
		}
		t.Row(r.setting, r.workload, r.used, fmt.Sprintf("%d/%d", r.bound, r.wanted), fmt.Sprintf("%.1f", r.rate()), ratio,
			p50, p99, perPod, memory, start)
	}
	return t.Format(132)
}
