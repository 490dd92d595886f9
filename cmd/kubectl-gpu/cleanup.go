// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/show/view"
)

func newCleanup(f *factory) *cobra.Command {
	var dryRun, demand string
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the objects that an uninstalled driver left",
		Long: "Remove the objects that the controller made and that helm uninstall leaves: its DeviceClasses, its " +
			"labels of nodes, and\n" +
			"in the namespace of --namespace its Lease and the ConfigMap with the demand. Labels with another " +
			"writer's value stay,\n" +
			"and so do GPU budgets with their CustomResourceDefinition, and cordons. The command changes nothing " +
			"while a node\n" +
			"publishes devices of the driver, while a pod of it runs, or if you may not see these.\n" +
			"It does not reach the nodes: a GPU whose partition ended shortly before the uninstall stays in MIG " +
			"mode. Run\n" +
			"nvidia-smi -i GPU -mig 0 there.",
		Example: "  kubectl gpu cleanup -n gpu-dra-driver --dry-run=server\n  kubectl gpu cleanup -n gpu-dra-driver",
		Args:    cobra.NoArgs,
	}
	c.Flags().StringVar(&dryRun, "dry-run", "none",
		"none, or server: send requests that change nothing, and print the result.")
	c.Flags().StringVar(&demand, "configmap", "gpu-dra-driver-asked",
		"ConfigMap with the demand: the full name of the release, and -asked.")
	c.RunE = f.limited(func(ctx context.Context, _ []string) error {
		if dryRun != "none" && dryRun != "server" {
			return usageError{fmt.Errorf("--dry-run=%s: use none or server", dryRun)}
		}
		o, err := f.load(ctx, want{needSlices: true, classes: true, nodes: true, pods: true})
		if err != nil {
			return err
		}
		ending, pods := 0, append(view.PluginPods(o.Pods), view.ControllerPods(o.Pods)...)
		for _, p := range pods {
			if p.DeletionTimestamp != nil {
				ending++
			}
		}
		switch {
		case len(o.Unseen) > 0:
			return fmt.Errorf("nothing is removed, because the driver may still run: %s", strings.Join(o.Unseen, "; "))
		case ending < len(pods):
			return fmt.Errorf("nothing is removed, because the driver is installed: %d ResourceSlices and %d pods "+
				"exist. Run helm uninstall first", len(o.Slices), len(pods))
		case ending > 0:
			return fmt.Errorf("nothing is removed yet, because the driver is ending: %d of its pods terminate. Run "+
				"the command again in a minute", ending)
		case len(o.Slices) > 0:
			return fmt.Errorf("nothing is removed yet: %d ResourceSlices exist, and no pod of the driver. The "+
				"kubelet of each node removes them within a minute. Run the command again; if they stay, delete them",
				len(o.Slices))
		}
		return (&cleaning{factory: f, objects: o, dryRun: dryRun == "server", demand: demand}).run(ctx)
	})
	return c
}

type cleaning struct {
	*factory
	objects *objects
	dryRun  bool
	// demand is the name of the ConfigMap with the demand.
	demand  string
	removed int
}

func (c *cleaning) run(ctx context.Context) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	client := c.objects.client
	options, suffix := metav1.DeleteOptions{}, ""
	if c.dryRun {
		options.DryRun, suffix = []string{metav1.DryRunAll}, " (server dry run)"
	}
	for _, class := range c.objects.Classes {
		if class.Labels[deviceclasses.ManagedBy] != c.driver {
			continue
		}
		if err := c.done("delete DeviceClass "+class.Name, "deviceclass "+class.Name+" deleted"+suffix,
			client.ResourceV1().DeviceClasses().Delete(ctx, class.Name, options)); err != nil {
			return err
		}
	}
	for _, n := range c.objects.CoreNodes {
		change := nodelabels.Gone(n.Labels, n.Annotations, c.driver)
		if change.None() {
			continue
		}
		_, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, change.Patch(n.ResourceVersion),
			metav1.PatchOptions{FieldManager: "kubectl-gpu", DryRun: options.DryRun})
		if err := c.done("remove the labels of node "+n.Name,
			fmt.Sprintf("node %s: %d labels removed%s", n.Name, len(change.Labels), suffix), err); err != nil {
			return err
		}
	}
	lease, demand := "dra-controller."+c.driver, c.demand
	err = client.CoordinationV1().Leases(namespace).Delete(ctx, lease, options)
	there := err == nil
	if err := c.done("delete Lease "+namespace+"/"+lease, "lease "+namespace+"/"+lease+" deleted"+suffix,
		err); err != nil {
		return err
	}
	err = client.CoreV1().ConfigMaps(namespace).Delete(ctx, demand, options)
	there = there || err == nil
	if err := c.done("delete ConfigMap "+namespace+"/"+demand, "configmap "+namespace+"/"+demand+" deleted"+suffix,
		err); err != nil {
		return err
	}
	if !there {
		fmt.Fprintf(c.ErrOut, "note: namespace %s has no Lease %s and no ConfigMap %s. If the driver was in another "+
			"namespace, they stay there: kubectl gpu cleanup -n NAMESPACE\n", namespace, lease, demand)
	}
	if c.removed == 0 {
		fmt.Fprintf(c.ErrOut, "Nothing of driver %s is left in the cluster and in namespace %s.\n", c.driver, namespace)
	}
	return nil
}

// done prints a removal. An object can be gone already.
func (c *cleaning) done(attempt, text string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", attempt, err)
	}
	c.removed++
	fmt.Fprintln(c.Out, text)
	return nil
}
