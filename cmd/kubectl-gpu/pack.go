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
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/pack"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/pkg/show/why"
)

func newPack(f *factory) *cobra.Command {
	p := &packCommand{}
	c := &cobra.Command{
		Use:   "pack (POD | --for GOAL | --node NODE --empty | --defragment)",
		Short: "Plan moves of pods that free GPUs, and make them",
		Long: "Print the fewest moves of pods after which a waiting pod or a goal fits, a node is empty, or GPUs are free that are\n" +
			"used in part. The scheduler's own allocator proves each step. Idle pods move before busy ones, small before large.\n" +
			"Node selectors, required node affinity, taints, CPU, memory and disruption budgets count. A pod with another\n" +
			"constraint, such as a volume, does not move, and neither do pods that --include names, unless it does.\n\n" +
			"Without --evict nothing changes. With it, the GPUs to be freed are cordoned, and the pods are evicted one by one. The\n" +
			"command waits for each new pod. It stops when an eviction is refused, when a new pod is not ready in time, or when\n" +
			"the rest of the plan no longer holds. The cordons end with the command, also when it is interrupted. Only\n" +
			"--node --empty keeps them once the node is empty. --evict needs the rights to create the subresource pods/eviction\n" +
			"and to patch nodes.\n\n" +
			"GOAL is " + pack.GoalHelp + ".\n" +
			"Exit code 0: it fits, or the moves suffice. 1: no plan, a move that failed, or an error. 2: an invalid command line.",
		Example: "  kubectl gpu pack train-1\n  kubectl gpu pack train-1 --evict\n  kubectl gpu pack --for nvlink-4\n" +
			"  kubectl gpu pack --node n1 --empty\n  kubectl gpu pack --defragment --include jobs",
		Args: cobra.MaximumNArgs(1),
	}
	p.output = f.addOutput(c)
	flags := c.Flags()
	flags.StringVar(&p.goal, "for", "", "Free devices for a goal, such as nvlink-4, 4, 3g.40gb or 40Gi.")
	flags.StringVar(&p.node, "node", "", "Free the GPUs of a node, with --empty.")
	flags.BoolVar(&p.empty, "empty", false, "Move all pods with devices off the node, as before its maintenance.")
	flags.BoolVar(&p.defragment, "defragment", false, "Empty GPUs that are used in part, and draw the nodes before and after.")
	flags.StringSliceVar(&p.include, "include", nil, "Also move: shared (pods with a claim of several pods, or one made by hand), jobs, unmanaged\n"+
		"(pods that no known controller creates again), unchecked (pods with constraints that were not looked at).")
	flags.BoolVar(&p.evict, "evict", false, "Make the moves.")
	flags.DurationVar(&p.limit, "time-limit", pack.DefaultLimit, "Time for the search of a plan.")
	flags.DurationVar(&p.patience, "move-timeout", 5*time.Minute, "Time for an evicted pod to end and to be ready elsewhere.")
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
	goal, node               string
	empty, defragment, evict bool
	include                  []string
	limit, patience          time.Duration
}

func (p *packCommand) validate(args []string) error {
	given := 0
	for _, one := range []bool{len(args) > 0, p.goal != "", p.node != "", p.defragment} {
		if one {
			given++
		}
	}
	switch {
	case given != 1:
		return errors.New("give one of: a pod, --for, --node with --empty, --defragment")
	case p.empty != (p.node != ""):
		return errors.New("--node and --empty belong together")
	case p.limit <= 0 || p.patience <= 0:
		return errors.New("--time-limit and --move-timeout must be more than 0")
	case p.evict && !p.table():
		return errors.New("--evict prints its progress: leave out --output")
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
		Driver: p.driver, Limit: p.limit, Shared: has("shared"), Jobs: has("jobs"), Unmanaged: has("unmanaged"), Unchecked: has("unchecked"),
	}
}

func (p *packCommand) run(ctx context.Context, args []string) error {
	look, err := p.look(ctx, args, true)
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
	} else if err := p.show(look, plan); err != nil {
		return err
	}
	switch {
	case plan.Result == pack.Blocked:
		return exitCode(1)
	case p.evict && len(plan.Moves) > 0:
		e := &evicting{packCommand: p, args: args, look: look, plan: plan}
		return e.run(ctx)
	}
	return nil
}

// look are the objects of one moment.
type look struct {
	*objects
	cluster *pack.Cluster
	goal    pack.Goal
}

// look reads the cluster, and the pod that waits. With usage it reads the metrics of the plugins too.
func (p *packCommand) look(ctx context.Context, args []string, usage bool) (*look, error) {
	ctx, cancel := p.bounded(ctx, defaultTimeout)
	defer cancel()
	o, err := p.load(ctx, want{needSlices: true, claims: true, classes: true, nodes: true, pods: true, rules: true, allDrivers: true})
	if err != nil {
		return nil, err
	}
	out := &look{objects: o, cluster: &pack.Cluster{Pods: pointers(o.Pods), AllPods: o.SeenPods}}
	g := getter{client: o.client, cluster: &out.cluster.Cluster}
	var subjects []why.Subject
	for _, name := range args {
		namespace, err := p.namespace()
		if err != nil {
			return nil, err
		}
		s, err := g.subject(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	if err := g.add(ctx, o, &why.Manifest{}, subjects...); err != nil {
		return nil, err
	}
	if err := out.budgets(ctx); err != nil {
		return nil, err
	}
	if usage {
		p.measure(ctx, out)
	}
	if p.goal != "" {
		out.goal, err = pack.ParseGoal(p.driver, p.goal)
	}
	for _, s := range subjects {
		out.goal, err = waiting(out.cluster, s)
	}
	return out, err
}

// waiting returns the goal of a pod or claim that waits for devices.
func waiting(c *pack.Cluster, s why.Subject) (pack.Goal, error) {
	needs := c.Needs(s, time.Now())
	switch missing := needs.Missing(); {
	case s.Pod != nil && s.Pod.Spec.NodeName != "":
		return pack.Goal{}, fmt.Errorf("%s %w, to node %s", s, errScheduled, s.Pod.Spec.NodeName)
	case len(missing) > 0:
		return pack.Goal{}, fmt.Errorf("%s: %s", s, missing[0].Text)
	case len(needs.Waiting()) == 0:
		return pack.Goal{}, fmt.Errorf("%s waits for no device", s)
	}
	return pack.Goal{Text: s.String(), Claims: needs.Waiting(), Pod: s.Pod, Needs: needs}, nil
}

// budgets reads the disruption budgets. Without the right the plan says that they were not looked at.
func (l *look) budgets(ctx context.Context) error {
	for page, err := range read.Pages(ctx, metav1.ListOptions{Limit: pageSize}, l.client.PolicyV1().PodDisruptionBudgets("").List) {
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			l.cluster.NoBudgets = true
			return nil
		case err != nil:
			return fmt.Errorf("list PodDisruptionBudgets: %w", err)
		}
		l.cluster.Budgets = append(l.cluster.Budgets, pointers(page.Items)...)
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
		fmt.Fprintf(p.ErrOut, "note: the utilization of %d of %d nodes is not known; kubectl gpu top says why\n", len(found.missing), len(plugins))
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
	switch {
	case p.defragment:
		return pack.Defragment(ctx, l.cluster, o)
	case p.empty:
		return pack.Empty(ctx, l.cluster, p.node, o)
	}
	return pack.Make(ctx, l.cluster, l.goal, o)
}

// show prints a plan for people.
func (p *packCommand) show(l *look, plan pack.Plan) error {
	if p.defragment && len(plan.Moves) > 0 {
		p.draw("Before:", plan.Nodes(), l, l.Claims)
	}
	fmt.Fprint(p.Out, plan)
	if !p.defragment || len(plan.Moves) == 0 {
		return nil
	}
	p.draw("After:", plan.Nodes(), l, plan.After)
	var rows []record
	for _, w := range plan.Wins() {
		rows = append(rows, record{name: w.GPU.String(), cells: []any{w.GPU.Node, w.GPU.Name, fmt.Sprint(w.Moves), fmt.Sprint(w.Total), strings.Join(w.Pods, ",")}})
	}
	return p.print("Win", "NODE,GPU WON,MOVES,MOVES SO FAR,PODS", rows, "")
}

// own returns the objects of this driver, with some claims.
func (l *look) own(claims []resourceapi.ResourceClaim) view.Objects {
	o := l.Objects
	o.Claims = claims
	o.Slices = slices.DeleteFunc(slices.Clone(o.Slices), func(s *pool.Slice) bool { return s.Shape == nil || s.Shape.Spec.Driver != o.Driver })
	return o
}

// incomplete returns those of some nodes, or of all without names, of whose slices some are missing now. The scheduler has
// no devices there.
func (l *look) incomplete(of ...string) (names []string) {
	for _, n := range view.Nodes(l.own(l.Claims)) {
		if n.Incomplete && (len(of) == 0 || slices.Contains(of, n.Name)) {
			names = append(names, n.Name)
		}
	}
	return names
}

func incompleteText(nodes []string) string {
	const most = 5
	if more := len(nodes) - most; more > 0 {
		nodes = append(slices.Clone(nodes[:most]), fmt.Sprintf("%d more", more))
	}
	return "slices are missing, as while a plugin publishes its devices anew, so claims get no devices of: " + strings.Join(nodes, ", ")
}

// draw draws nodes with some claims.
func (p *packCommand) draw(title string, nodes []string, l *look, claims []resourceapi.ResourceClaim) {
	fmt.Fprintln(p.Out, title)
	for _, n := range view.Nodes(l.own(claims)) {
		if slices.Contains(nodes, n.Name) {
			fmt.Fprint(p.Out, view.Drawing{Width: p.width(), Colours: p.colours()}.Node(n))
		}
	}
}

// pod finds a pod by namespace/name.
func (l *look) pod(name string) *corev1.Pod {
	for _, p := range l.cluster.Pods {
		if p.Namespace+"/"+p.Name == name {
			return p
		}
	}
	return nil
}
