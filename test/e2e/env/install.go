// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HardwareLabel marks nodes with NVIDIA's hardware, as node feature discovery does. The chart's affinity asks for it.
const HardwareLabel = "feature.node.kubernetes.io/pci-10de.present=true"

// Install loads the images, creates the simulated GPUs and installs the chart, with more Helm arguments if given.
func (e *Env) Install(ctx context.Context, profile string, gpus int, helm ...string) error {
	if err := e.Step("load the images", func() error {
		archives, err := filepath.Glob(filepath.Join(e.Tree, "dist", "*.tar"))
		if err != nil || len(archives) == 0 {
			return fmt.Errorf("no images in dist/: run make images (%w)", err)
		}
		return e.Node(ctx, "load", archives...)
	}); err != nil {
		return err
	}
	if err := e.Step("simulate "+profile, func() error { return e.simulate(ctx, profile) }); err != nil {
		return err
	}
	return e.Step("install the chart", func() error {
		if err := e.Helm(ctx, helm...); err != nil {
			return err
		}
		return e.WaitPublished(ctx, gpus)
	})
}

// simulate makes the simulated machine, unless it is there.
func (e *Env) simulate(ctx context.Context, profile string) error {
	if _, err := e.SimState(ctx); err == nil {
		return nil
	}
	if !e.SimulatorChart {
		return e.Sim(ctx, "up", "--profile", profile)
	}
	return e.upgrade(ctx, simulator, filepath.Join(e.Tree, "deployments", "helm", simulator), simulator,
		"--set", "image.pullPolicy=Never,board="+profile+",root="+e.Root)
}

// upgrade installs or upgrades a chart, and waits until its pods are ready.
func (e *Env) upgrade(ctx context.Context, release, chart, namespace string, args ...string) error {
	_, err := e.Run(ctx, filepath.Join(e.Tree, "hack", "tool.sh"), append([]string{
		"helm", "upgrade", "--install", release, chart, "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "120s",
	}, args...)...)
	return err
}

// Helm installs or upgrades the chart on the simulated root, with the chart's own values but where the machine is simulated.
func (e *Env) Helm(ctx context.Context, args ...string) error {
	now := settings{"", strings.Join(args, " ")}
	e.inForce = settings{file: "unknown"}
	if e.rolls > 0 {
		args = slices.Concat([]string{"--set", fmt.Sprintf("logVerbosity=%d", 2+e.rolls)}, e.rolled, args)
	}
	machine := []string{"--set", "simulator.enabled=true,simulator.root=" + e.Root}
	if !e.SimulatorChart {
		if _, err := e.Kubectl(ctx, "label", "nodes", "--all", "--overwrite", HardwareLabel); err != nil {
			return err
		}
		machine = []string{
			"--set", "nvidiaDriverRoot=" + e.Root,
			"--set", "kubeletPlugin.hostProcRoot=" + filepath.Join(e.Root, "proc"),
			"--set", "kubeletPlugin.hostSysRoot=" + filepath.Join(e.Root, "sys"),
			"--set", "kubeletPlugin.hostKernelLog=" + filepath.Join(e.Root, "dev/kmsg"),
			"--set", "kubeletPlugin.driverRootReadOnly=false", // The simulated GPUs keep their state in it.
		}
	}
	if err := e.upgrade(ctx, Release, e.Chart, Namespace, slices.Concat(machine, []string{
		"--set", "image.pullPolicy=Never", "--set", "kubeletPlugin.metrics.enabled=true", // The images are on the nodes.
	}, args)...); err != nil {
		return err
	}
	e.inForce = now
	return nil
}

// Uninstall removes the chart, and waits until its pods and the node's slices are gone.
func (e *Env) Uninstall(ctx context.Context) error {
	if _, err := e.Run(ctx, filepath.Join(e.Tree, "hack", "tool.sh"), "helm", "uninstall", Release, "--namespace", Namespace, "--wait", "--timeout", "120s"); err != nil {
		return err
	}
	return e.Eventually(ctx, "pods and slices gone", 120*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := e.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		slices, err := e.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + Driver})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items)+len(slices.Items) == 0, fmt.Sprintf("%d pods and %d slices are left", len(pods.Items), len(slices.Items))
	})
}

// WaitPublished waits until the node's slices have the given number of whole GPUs.
func (e *Env) WaitPublished(ctx context.Context, gpus int) error {
	return e.Eventually(ctx, fmt.Sprintf("%d GPUs published", gpus), 60*time.Second, func(ctx context.Context) (bool, string) {
		devices, err := e.Devices(ctx, "gpu")
		if err != nil {
			return false, err.Error()
		}
		return len(devices) == gpus, fmt.Sprintf("%d are published", len(devices))
	})
}

// Devices lists the published devices of a type.
func (e *Env) Devices(ctx context.Context, kind string) ([]resourceapi.Device, error) {
	slices, err := e.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + Driver})
	if err != nil {
		return nil, err
	}
	var out []resourceapi.Device
	for _, slice := range slices.Items {
		for _, d := range slice.Spec.Devices {
			if a, ok := d.Attributes["type"]; ok && a.StringValue != nil && *a.StringValue == kind {
				out = append(out, d)
			}
		}
	}
	return out, nil
}
