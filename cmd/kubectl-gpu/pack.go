// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/show/view"
)

func newPack(f *factory) *cobra.Command {
	p := &packCommand{}
	c := &cobra.Command{
		Use:   "pack (POD | --for GOAL | --node NODE --empty)",
		Short: "Plan moves of pods that free GPUs",
		Long: "Print the fewest moves of pods after which a waiting pod or a goal fits, or a node is empty, and " +
			"commands that make\n" +
			"them. The scheduler's own allocator proves each step. Idle pods move before busy ones, small before " +
			"large. Node\n" +
			"selectors, required node affinity, taints, CPU, memory and disruption budgets count. A pod with another " +
			"constraint,\n" +
			"such as a volume, does not move, and neither do pods that --include names, unless it does. Nothing " +
			"changes.\n\n" +
			"GOAL is " + pack.GoalHelp + ".\n" +
			"Exit code 0: it fits, or the moves suffice. 1: no plan, or an error. 2: an invalid command line.",
		Example: "  kubectl gpu pack train-1\n  kubectl gpu pack --for nvlink-4\n  kubectl gpu pack --node n1 " +
			"--empty --include jobs",
		Args: cobra.MaximumNArgs(1),
	}
	p.output = f.addOutput(c)
	flags := c.Flags()
	flags.StringVar(&p.goal, "for", "", "Plan for a goal, such as nvlink-4, 4, 3g.40gb or 40Gi.")
	flags.StringVar(&p.node, "node", "", "Plan for a node, with --empty.")
	flags.BoolVar(&p.empty, "empty", false, "Plan to move all pods with devices off the node, as for maintenance.")
	flags.StringSliceVar(&p.include, "include", nil, "Also move: shared (pods with a claim of several pods, or one "+
		"made by hand), jobs, unmanaged\n"+
		"(pods that no known controller creates again), unchecked (pods with constraints that were not looked at).")
	flags.DurationVar(&p.limit, "time-limit", pack.DefaultLimit, "Time for the search of a plan.")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := p.validate(args); err != nil {
			return usageError{err}
		}
		return p.run(c.Context(), args)
	}
	return c
}

type packCommand struct {
	*output
	goal, node string
	empty      bool
	include    []string
	limit      time.Duration
}

func (p *packCommand) validate(args []string) error {
	given := 0
	for _, one := range []bool{len(args) > 0, p.goal != "", p.node != ""} {
		if one {
			given++
		}
	}
	switch {
	case given != 1:
		return errors.New("give one of: a pod, --for, --node with --empty")
	case p.empty != (p.node != ""):
		return errors.New("--node and --empty belong together")
	case p.limit <= 0:
		return errors.New("--time-limit must be more than 0")
	}
	for _, one := range p.include {
		if !slices.Contains([]string{"shared", "jobs", "unmanaged", "unchecked"}, one) {
			return fmt.Errorf("--include=%s: give shared, jobs, unmanaged or unchecked", one)
		}
	}
	if p.goal != "" {
		_, err := pack.ParseGoal(p.driver, p.goal)
		return err
	}
	return nil
}

func (p *packCommand) options() pack.Options {
	has := func(name string) bool { return slices.Contains(p.include, name) }
	return pack.Options{
		Driver:    p.driver,
		Limit:     p.limit,
		Shared:    has("shared"),
		Jobs:      has("jobs"),
		Unmanaged: has("unmanaged"),
		Unchecked: has("unchecked"),
	}
}

func (p *packCommand) run(ctx context.Context, args []string) error {
	look, err := p.look(ctx, args)
	if err != nil {
		return err
	}
	plan := p.plan(ctx, look)
	if parts := look.incomplete(); len(parts) > 0 {
		plan.Notes = append(plan.Notes, incompleteText(parts))
	}
	if !p.table() {
		if err := p.print("Plan", "", []record{{name: "plan", object: plan}}, ""); err != nil {
			return err
		}
	} else {
		fmt.Fprint(p.Out, plan)
	}
	if plan.Result == pack.Blocked {
		return exitCode(1)
	}
	return nil
}

// look are the objects of one moment.
type look struct {
	*objects
	cluster *pack.Cluster
	goal    pack.Goal
}

// look reads the cluster, the pod that waits, and the metrics of the plugins.
func (p *packCommand) look(ctx context.Context, args []string) (*look, error) {
	ctx, cancel := p.bounded(ctx, defaultTimeout)
	defer cancel()
	o, err := p.load(ctx, want{
		needSlices: true,
		claims:     true,
		classes:    true,
		nodes:      true,
		pods:       true,
		rules:      true,
		allDrivers: true,
	})
	if err != nil {
		return nil, err
	}
	out := &look{objects: o, cluster: &pack.Cluster{Pods: pointers(o.Pods)}}
	out.cluster.States = o.States
	g := getter{o.reader, &out.cluster.Cluster}
	namespace, err := p.namespace()
	if err != nil {
		return nil, err
	}
	subjects, err := g.subjects(ctx, namespace, args)
	if err != nil {
		return nil, err
	}
	if err := g.add(ctx, o, &why.Manifest{}, subjects...); err != nil {
		return nil, err
	}
	if err := out.budgets(ctx); err != nil {
		return nil, err
	}
	p.measure(ctx, out)
	if p.goal != "" {
		out.goal, err = pack.ParseGoal(p.driver, p.goal)
	}
	for _, s := range subjects {
		out.goal, err = goalOf(out.cluster, s)
	}
	return out, err
}

// goalOf returns the goal of a pod or claim that waits for devices.
func goalOf(c *pack.Cluster, s why.Subject) (pack.Goal, error) {
	needs := c.Needs(s, time.Now())
	switch missing := needs.Missing(); {
	case s.Pod != nil && s.Pod.Spec.NodeName != "":
		return pack.Goal{}, fmt.Errorf("%s is scheduled already, to node %s", s, s.Pod.Spec.NodeName)
	case len(missing) > 0:
		return pack.Goal{}, fmt.Errorf("%s: %s", s, missing[0].Text)
	case len(needs.Waiting()) == 0:
		return pack.Goal{}, fmt.Errorf("%s waits for no device", s)
	}
	return pack.Goal{Text: s.String(), Claims: needs.Waiting(), Pod: s.Pod, Needs: needs}, nil
}

// budgets reads the disruption budgets. Without the right the plan says that they were not looked at.
func (l *look) budgets(ctx context.Context) error {
	budgets := l.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll)
	from := from(kind{resource: read.PodDisruptionBudgets}, "", budgets)
	if err := l.read(ctx, from, "", appendTo(&l.cluster.Budgets)); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// measure reads the utilization of pods from the plugins' metrics. Without it, pods count as neither idle nor busy.
func (p *packCommand) measure(ctx context.Context, l *look) {
	plugins := view.PluginPods(l.Pods)
	if len(plugins) == 0 {
		return
	}
	found := scrape(ctx, l.client, plugins, nodeOf)
	if len(found.missing) > 0 {
		fmt.Fprintf(p.ErrOut, "note: the utilization of %d of %d nodes is not known; kubectl gpu top says why\n",
			len(found.missing), len(plugins))
	}
	l.cluster.Use = map[types.NamespacedName]float64{}
	for _, u := range view.TopPods(found.samples) {
		if u.Utilization != nil {
			l.cluster.Use[types.NamespacedName{Namespace: u.Namespace, Name: u.Name}] = *u.Utilization
		}
	}
}

// plan plans for what the user asks.
func (p *packCommand) plan(ctx context.Context, l *look) pack.Plan {
	o := p.options()
	if p.empty {
		return pack.Empty(ctx, l.cluster, p.node, o)
	}
	return pack.Make(ctx, l.cluster, l.goal, o)
}

// incomplete returns the nodes of whose slices some are missing now. The scheduler has no devices there.
func (l *look) incomplete() (names []string) {
	own := l.Objects
	own.Slices = slices.DeleteFunc(slices.Clone(own.Slices), func(s *pool.Slice) bool {
		return s.Shape == nil || s.Shape.Spec.Driver != own.Driver
	})
	for _, n := range view.Nodes(own) {
		if n.Incomplete {
			names = append(names, n.Name)
		}
	}
	return names
}

func incompleteText(nodes []string) string {
	const maxNamed = 5
	if more := len(nodes) - maxNamed; more > 0 {
		nodes = append(slices.Clone(nodes[:maxNamed]), fmt.Sprintf("%d more", more))
	}
	return "slices are missing, as while a plugin publishes its devices anew, so claims get no devices of: " +
		strings.Join(nodes, ", ")
}
