// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/pkg/wire"
)

const deviceHelp = "DEVICE is NODE/NAME, with a name that kubectl gpu ls prints; NAME is enough if only one node has " +
	"GPUs. A partition\n" +
	"stands for its GPU, and an NVLink group for its members."

const cordonHelp = "It needs the right to patch nodes: the cordon is an annotation of the node, and the node's " +
	"plugin taints the devices.\n"

func newCordon(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:   "cordon DEVICE...",
		Short: "Keep new claims off a GPU, its partitions and groups",
		Long: "Keep new claims off a GPU, all its partitions and its NVLink groups, also those that the node " +
			"publishes later. Pods with\n" +
			"the GPU run on.\n" + cordonHelp + deviceHelp,
		Example: "  kubectl gpu cordon n1/gpu-0000-1b-00-0",
	}, resourceapi.DeviceTaintEffectNoSchedule)
}

func newDrain(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:   "drain DEVICE...",
		Short: "Cordon a GPU and evict its pods",
		Long: "Keep new claims off a GPU, all its partitions and its NVLink groups, also those that the node " +
			"publishes later, and evict\n" +
			"the pods with their devices. --dry-run=server prints the pods and changes nothing.\n" + cordonHelp +
			deviceHelp,
		Example: "  kubectl gpu drain n1/gpu-0000-1b-00-0 --dry-run=server",
	}, resourceapi.DeviceTaintEffectNoExecute)
}

func newUncordon(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:     "uncordon DEVICE...",
		Short:   "Undo cordon and drain",
		Long:    "Remove the annotation of cordon and drain from the node.\n" + deviceHelp,
		Example: "  kubectl gpu uncordon n1/gpu-0000-1b-00-0",
	}, "")
}

// newTainting completes a command that cordons GPUs with an effect, or removes cordons without.
func newTainting(f *factory, c *cobra.Command, effect resourceapi.DeviceTaintEffect) *cobra.Command {
	var dryRun string
	c.Args = needDevice
	c.ValidArgsFunction = f.completeGPUs
	c.Flags().StringVar(&dryRun, "dry-run", "none",
		"none, or server: send requests that change nothing, and print the result.")
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		if dryRun != "none" && dryRun != "server" {
			return usageError{fmt.Errorf("--dry-run=%s: use none or server", dryRun)}
		}
		o, err := f.load(ctx, want{claims: true, needSlices: true})
		if err != nil {
			return err
		}
		t := &tainting{factory: f, effect: effect, objects: o}
		if dryRun == "server" {
			t.dryRun, t.suffix = []string{metav1.DryRunAll}, " (server dry run)"
		}
		// All names are checked before the first change.
		// A cordoned GPU can have no device, on an API server without taints.
		gpus, err := findAll(view.Nodes(o.Objects), args, t.effect == "")
		if err != nil {
			return err
		}
		var changed []view.GPU
		for _, g := range gpus {
			was, err := t.annotate(ctx, g)
			switch {
			case err != nil:
				return err
			case was == "" && effect == "":
				fmt.Fprintf(t.Out, "gpu %s/%s was not cordoned by this command\n", g.Node, g.Name)
			default:
				changed = append(changed, g)
			}
		}
		for _, g := range changed {
			if err := t.finish(ctx, g); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

type tainting struct {
	*factory
	// effect is empty to remove a cordon.
	effect  resourceapi.DeviceTaintEffect
	objects *objects
	dryRun  []string
	suffix  string
}

// annotate writes or removes the cordon of a GPU. It returns the earlier one.
func (t *tainting) annotate(ctx context.Context, g view.GPU) (was string, err error) {
	nodes, key := t.objects.client.CoreV1().Nodes(), wire.CordonAnnotation(t.driver, g.Name)
	node, err := nodes.Get(ctx, g.Node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read node %s of GPU %s: %w", g.Node, g.Name, err)
	}
	var value any
	was = node.Annotations[key]
	if t.effect != "" {
		value = t.effect
	} else if was == "" {
		return "", nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return "", err
	}
	options := metav1.PatchOptions{FieldManager: "kubectl-gpu", DryRun: t.dryRun}
	if _, err = nodes.Patch(ctx, g.Node, types.MergePatchType, patch, options); err != nil {
		return "", fmt.Errorf("annotate node %s of GPU %s with %s: %w", g.Node, g.Name, key, err)
	}
	return was, nil
}

// finish waits until the plugin has followed, and prints the result.
func (t *tainting) finish(ctx context.Context, g view.GPU) error {
	name, tainted := g.Node+"/"+g.Name, 0
	if t.dryRun == nil {
		var err error
		if g, err = t.wait(ctx, g); err != nil {
			return err
		}
		_, tainted = g.Cordoned()
	} else {
		free, held := g.Uncordoned(resourceapi.DeviceTaintEffectNone)
		tainted = len(free) + len(held)
	}
	switch t.effect {
	case "":
		fmt.Fprintf(t.Out, "gpu %s uncordoned%s\n", name, t.suffix)
		return nil
	case resourceapi.DeviceTaintEffectNoSchedule:
		fmt.Fprintf(t.Out, "gpu %s cordoned: %d devices tainted%s\n", name, tainted, t.suffix)
		return nil
	}
	fmt.Fprintf(t.Out, "gpu %s drained: %d devices tainted%s\n", name, tainted, t.suffix)
	if _, held := g.Uncordoned(t.effect); len(held) > 0 && t.dryRun == nil {
		return fmt.Errorf("no pod is evicted from GPU %s: the API server keeps no device taints (feature gate "+
			"DRADeviceTaints); delete the pods yourself", name)
	}
	verb := "evicts"
	if t.dryRun != nil {
		verb = "would evict"
	}
	for _, e := range g.Evictions(t.objects.Objects) {
		who := "pod "
		if strings.HasPrefix(e.Pod, view.PodGroup) {
			who = "the pods of "
		}
		fmt.Fprintf(t.Out, "%s %s%s/%s (claim %s, device %s)\n", verb, who, e.Namespace, e.Pod, e.Claim, e.Device)
	}
	return nil
}

// followLimit is the time for a plugin to follow an annotation. It takes about a second.
var followLimit = 15 * time.Second

const followPoll = 250 * time.Millisecond

// wait returns the GPU once its devices follow the annotation: no claim can get one that is not cordoned, or its own
// devices are not cordoned any more.
func (t *tainting) wait(ctx context.Context, g view.GPU) (view.GPU, error) {
	limited, cancel := context.WithTimeout(ctx, followLimit)
	defer cancel()
	selector := fields.Set{resourceapi.ResourceSliceSelectorDriver: t.driver,
		resourceapi.ResourceSliceSelectorNodeName: g.Node}
	free, _ := g.Uncordoned(t.effect)
	left := len(free)
	err := wait.PollUntilContextCancel(limited, followPoll, true, func(ctx context.Context) (bool, error) {
		var shapes pool.Shapes
		o := t.objects.Objects
		o.Slices = nil
		options := metav1.ListOptions{FieldSelector: selector.String()}
		for p, err := range read.Slices(ctx, t.objects.client, options, shapes.Pack) {
			if err != nil {
				return false, err
			}
			if p.Node == g.Node && p.Shape.Spec.Driver == t.driver {
				o.Slices = append(o.Slices, p)
			}
		}
		node := view.NewIndex(o).Node(g.Node)
		at := slices.IndexFunc(node.GPUs, func(o view.GPU) bool { return o.Name == g.Name })
		if at < 0 { // An API server without taints has no devices of a cordoned GPU.
			return true, nil
		}
		g = node.GPUs[at]
		free, _ := g.Uncordoned(t.effect)
		if left = len(free); t.effect == "" {
			left, _ = g.Cordoned()
		}
		return left == 0 && !node.Incomplete, nil
	})
	switch {
	case err == nil:
		return g, nil
	case limited.Err() == nil || ctx.Err() != nil:
		return g, fmt.Errorf("read the slices of node %s: %w", g.Node, err)
	case t.effect == "":
		return g, fmt.Errorf("the cordon of GPU %s/%s is removed, but %d of its devices are still tainted after %s: "+
			"the node's plugin does not follow; kubectl gpu doctor %[1]s checks it",
			g.Node, g.Name, left, followLimit)
	}
	return g, fmt.Errorf("the cordon of GPU %s/%s is set, but claims can still get %d of its devices after %s: the "+
		"node's plugin does not follow; kubectl gpu doctor %[1]s checks it",
		g.Node, g.Name, left, followLimit)
}

// completeGPUs offers NODE/GPU for the shell's completion.
func (f *factory) completeGPUs(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.complete(c, func(n view.Node) (out []string) {
		for _, g := range n.GPUs {
			out = append(out, n.Name+"/"+g.Name)
		}
		return out
	})
}

// completeNodes offers the nodes with GPUs.
func (f *factory) completeNodes(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.complete(c, func(n view.Node) []string { return []string{n.Name} })
}

func (f *factory) complete(
	c *cobra.Command, names func(view.Node) []string,
) (out []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	o, err := f.load(ctx, want{needSlices: true})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, n := range view.Nodes(o.Objects) {
		out = append(out, names(n)...)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
