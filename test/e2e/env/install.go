// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Install makes the simulated GPUs, loads the images and installs the chart, with more Helm arguments if given.
func (s *Stage) Install(ctx context.Context, profile string, gpus int, helm ...string) error {
	if err := s.Step("simulate "+profile, func() error { return s.Sim(ctx, "up", "--profile", profile) }); err != nil {
		return err
	}
	if err := s.Step("load the images", func() error {
		archives, err := filepath.Glob(filepath.Join(s.Tree, "dist", "*.tar"))
		if err != nil || len(archives) == 0 {
			return fmt.Errorf("no images in dist/: run make images (%w)", err)
		}
		return s.Node(ctx, "load", archives...)
	}); err != nil {
		return err
	}
	return s.Step("install the chart", func() error {
		if err := s.Helm(ctx, helm...); err != nil {
			return err
		}
		return s.WaitPublished(ctx, gpus)
	})
}

// Helm installs or upgrades the chart on the simulated root.
func (s *Stage) Helm(ctx context.Context, args ...string) error {
	_, err := s.Run(ctx, filepath.Join(s.Tree, "hack", "tool.sh"), append([]string{
		"helm", "upgrade", "--install", Release, filepath.Join(s.Tree, "deployments", "helm", "gpu-dra-driver"),
		"--namespace", Namespace, "--create-namespace", "--wait", "--timeout", "120s",
		"--set", "nvidiaDriverRoot=" + s.Root,
		"--set", "kubeletPlugin.hostProcRoot=" + filepath.Join(s.Root, "proc"),
		"--set", "kubeletPlugin.hostSysRoot=" + filepath.Join(s.Root, "sys"),
		"--set", "kubeletPlugin.driverRootReadOnly=false",
		"--set", "kubeletPlugin.metrics.enabled=true",
	}, args...)...)
	return err
}

// WaitPublished waits until the node's slices hold as many whole GPUs.
func (s *Stage) WaitPublished(ctx context.Context, gpus int) error {
	return s.Wait(ctx, fmt.Sprintf("%d GPUs published", gpus), 60*time.Second, func(ctx context.Context) (bool, string) {
		devices, err := s.Devices(ctx, "gpu")
		if err != nil {
			return false, err.Error()
		}
		return len(devices) == gpus, fmt.Sprintf("%d are published", len(devices))
	})
}

// Devices lists the published devices of a type.
func (s *Stage) Devices(ctx context.Context, kind string) ([]resourceapi.Device, error) {
	slices, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + Driver})
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
