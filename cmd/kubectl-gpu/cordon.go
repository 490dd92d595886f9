// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"gpu-dra-driver/pkg/show/view"
)

const deviceHelp = "DEVICE is NODE/NAME, with a name that kubectl gpu ls prints; NAME is enough if only one node has GPUs. A partition\n" +
	"stands for its GPU, and an NVLink group for its members."

func newCordon(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:   "cordon DEVICE...",
		Short: "Keep new claims off a GPU, its partitions and groups",
		Long: "Keep new claims off a GPU, all its partitions and its NVLink groups, by DeviceTaintRules. Pods with the GPU run on.\n" +
			deviceHelp + "\nDevices that the node publishes later, as after a change of its settings, need another cordon.",
		Example: "  kubectl gpu cordon n1/gpu-0000-1b-00-0",
	}, resourceapi.DeviceTaintEffectNoSchedule)
}

func newDrain(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:   "drain DEVICE...",
		Short: "Cordon a GPU and evict its pods",
		Long: "Keep new claims off a GPU, all its partitions and its NVLink groups, and evict the pods with their devices.\n" +
			"--dry-run=server prints the pods and changes nothing.\n" + deviceHelp,
		Example: "  kubectl gpu drain n1/gpu-0000-1b-00-0 --dry-run=server",
	}, resourceapi.DeviceTaintEffectNoExecute)
}

func newUncordon(f *factory) *cobra.Command {
	return newTainting(f, &cobra.Command{
		Use:     "uncordon DEVICE...",
		Short:   "Undo cordon and drain",
		Long:    "Delete the DeviceTaintRules of cordon and drain.\n" + deviceHelp,
		Example: "  kubectl gpu uncordon n1/gpu-0000-1b-00-0",
	}, resourceapi.DeviceTaintEffectNone)
}

// newTainting completes a command that taints GPUs, or removes the taints if effect is None.
func newTainting(f *factory, c *cobra.Command, effect resourceapi.DeviceTaintEffect) *cobra.Command {
	var dryRun string
	c.Args = needDevice
	c.ValidArgsFunction = f.completeGPUs
	c.Flags().StringVar(&dryRun, "dry-run", "none", "none, or server: send requests that change nothing, and print the result.")
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		if dryRun != "none" && dryRun != "server" {
			return usageError{fmt.Errorf("--dry-run=%s: use none or server", dryRun)}
		}
		o, err := f.load(ctx, want{claims: true, rules: true})
		if err != nil {
			return err
		}
		if o.RuleVersion == "" {
			return errors.New("the API server serves no DeviceTaintRules to you: Kubernetes 1.37 does, older versions do with the feature gate " +
				"DRADeviceTaintRules and its API version; reading them is a right of its own")
		}
		t := &tainting{factory: f, effect: effect, objects: o, rules: o.dynamic.Resource(ruleResource(o.RuleVersion))}
		if dryRun == "server" {
			t.dryRun, t.suffix = []string{metav1.DryRunAll}, " (server dry run)"
		}
		// All names are checked before the first change.
		gpus, err := findAll(view.Nodes(o.Objects), args)
		if err != nil {
			return err
		}
		for _, g := range gpus {
			if err := t.run(ctx, g); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

type tainting struct {
	*factory
	effect  resourceapi.DeviceTaintEffect
	objects *objects
	rules   dynamic.ResourceInterface
	dryRun  []string
	suffix  string
}

func (t *tainting) run(ctx context.Context, g view.GPU) error {
	name := g.Node + "/" + g.Name
	if t.effect == resourceapi.DeviceTaintEffectNone {
		return t.remove(ctx, g, name)
	}
	rules := g.CordonRules(t.driver, t.effect)
	for _, rule := range rules {
		if err := t.apply(ctx, rule); err != nil {
			return fmt.Errorf("taint device %s of GPU %s: %w: the GPU may be cordoned in part; run the command again, or uncordon", *rule.Spec.DeviceSelector.Device, name, err)
		}
	}
	word := "cordoned"
	if t.effect == resourceapi.DeviceTaintEffectNoExecute {
		word = "drained"
	}
	fmt.Fprintf(t.Out, "gpu %s %s: %d devices tainted%s\n", name, word, len(rules), t.suffix)
	if t.effect == resourceapi.DeviceTaintEffectNoExecute {
		verb := "evicts"
		if t.dryRun != nil {
			verb = "would evict"
		}
		for _, e := range view.Evictions(t.objects.Objects, rules) {
			who := "pod "
			if strings.HasPrefix(e.Pod, view.PodGroup) {
				who = "the pods of "
			}
			fmt.Fprintf(t.Out, "%s %s%s/%s (claim %s, device %s)\n", verb, who, e.Namespace, e.Pod, e.Claim, e.Device)
		}
	}
	return nil
}

// apply creates a rule, or updates the one of an earlier cordon or drain.
func (t *tainting) apply(ctx context.Context, rule resourceapi.DeviceTaintRule) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&rule)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(u.Object, "spec", "taint", "timeAdded")
	u.SetAPIVersion("resource.k8s.io/" + t.objects.RuleVersion)
	u.SetKind("DeviceTaintRule")
	_, err = t.rules.Apply(ctx, rule.Name, u, metav1.ApplyOptions{FieldManager: "kubectl-gpu", Force: true, DryRun: t.dryRun})
	return err
}

func (t *tainting) remove(ctx context.Context, g view.GPU, name string) error {
	n := 0
	for _, rule := range t.objects.Rules {
		if !g.Cordons(rule) {
			continue
		}
		err := t.rules.Delete(ctx, rule.Name, metav1.DeleteOptions{DryRun: t.dryRun})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete DeviceTaintRule %s of GPU %s: %w: run the command again", rule.Name, name, err)
		}
		n++
	}
	if n == 0 {
		fmt.Fprintf(t.Out, "gpu %s was not cordoned by this command\n", name)
		return nil
	}
	fmt.Fprintf(t.Out, "gpu %s uncordoned: %d taints removed%s\n", name, n, t.suffix)
	return nil
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

func (f *factory) complete(c *cobra.Command, names func(view.Node) []string) (out []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	o, err := f.load(ctx, want{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, n := range view.Nodes(o.Objects) {
		out = append(out, names(n)...)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
