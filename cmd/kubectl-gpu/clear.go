// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/show/view"
)

// pluginContainer is the container of the plugin's program, by the chart.
const pluginContainer = "gpus"

func newClear(f *factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "clear DEVICE...",
		Short: "Forget a GPU's fault after its repair",
		Long: "Let the node's plugin forget the faults that it remembers of a GPU, so that claims can get it again.\n" +
			"It is for faults of memory, for XIDs of the chart value health.taintXIDs, and for GPUs whose NVIDIA " +
			"driver reports no\n" +
			"recovery action (before R570). Other faults end by themselves. Repair the GPU first, as kubectl gpu " +
			"doctor says.\n" +
			"A fault that its driver still reports comes back.\n" +
			"It needs the right to create the subresource pods/exec in the driver's namespace.\n" + deviceHelp,
		Example: "  kubectl gpu clear n1/gpu-0000-1b-00-0",
	}
	c.Args = needDevice
	c.ValidArgsFunction = f.completeGPUs
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		o, err := f.load(ctx, want{needSlices: true, pods: true, podLabels: view.PluginSelector})
		if err != nil {
			return err
		}
		config, err := f.restConfig()
		if err != nil {
			return err
		}
		gpus, err := findAll(view.Nodes(o.Objects), args, false)
		if err != nil {
			return err
		}
		plugins := view.PluginPods(o.Pods)
		for _, g := range gpus {
			at := slices.IndexFunc(plugins, func(p corev1.Pod) bool { return p.Spec.NodeName == g.Node })
			if at < 0 {
				return fmt.Errorf("clear the faults of GPU %s/%s: no plugin of the driver runs on the node, or you "+
					"may not list its pods", g.Node, g.Name)
			}
			out, err := execute(ctx, config, plugins[at], "dra-kubelet-plugin", "--clear-faults="+g.PCIAddress)
			if err != nil {
				return fmt.Errorf("clear the faults of GPU %s/%s: %w", g.Node, g.Name, err)
			}
			fmt.Fprint(f.Out, out)
			if strings.Contains(out, "cleared") {
				fmt.Fprintf(f.Out, "gpu %s/%s: the plugin removes its taint within 30 s, unless a fault is still "+
					"there\n", g.Node, g.Name)
			}
		}
		return nil
	})
	return c
}

// findAll returns the GPUs of devices, each once. With absent, the name of a GPU without a device is enough.
func findAll(nodes []view.Node, devices []string, absent bool) (out []view.GPU, err error) {
	for _, device := range devices {
		found, err := view.Find(nodes, device)
		if node, name, ok := strings.Cut(device, "/"); err != nil && ok && absent {
			if d, invalid := gpu.ParseName(name); invalid == nil && d.Kind == gpu.KindGPU {
				found, err = []view.GPU{{Node: node, Name: name}}, nil
			}
		}
		if err != nil {
			return nil, err
		}
		for _, g := range found {
			if !slices.ContainsFunc(out, func(o view.GPU) bool { return o.Node == g.Node && o.Name == g.Name }) {
				out = append(out, g)
			}
		}
	}
	return out, nil
}

func needDevice(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("a device is missing")}
	}
	return nil
}

// execute runs a program in a plugin's container and returns its output, without characters that a terminal interprets.
// An error has the program's own message.
func execute(ctx context.Context, config *rest.Config, pod corev1.Pod, command ...string) (string, error) {
	name := pod.Namespace + "/" + pod.Name
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return "", fmt.Errorf("make a client for the API server: %w", err)
	}
	request := client.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pluginContainer, Command: command, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("run a program in pod %s: %w", name, err)
	}
	var out, errOut strings.Builder
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
	switch text := strings.TrimSpace(errOut.String()); {
	case err == nil:
		return printers.EscapeTerminal(out.String()), nil
	case text != "":
		return "", fmt.Errorf("pod %s: %s", name, printers.EscapeTerminal(text))
	case strings.Contains(err.Error(), "is forbidden"):
		return "", fmt.Errorf("you may not create the subresource pods/exec in namespace %s: %w", pod.Namespace, err)
	}
	return "", fmt.Errorf("run a program in pod %s: %w", name, err)
}
