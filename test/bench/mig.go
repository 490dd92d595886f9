// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/e2e/env"
)

// The partition to create: the second half's first slice, with a profile of every GPU here.
const (
	profile   = "1g.10gb"
	profileID = 19
	start     = 4
)

// size measures the published slices.
func (b *bench) size(ctx context.Context) error {
	list, err := b.stage.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver})
	if err != nil {
		return err
	}
	devices, bytes := 0, 0
	for _, s := range list.Items {
		data, err := json.Marshal(s.Spec)
		if err != nil {
			return err
		}
		devices, bytes = devices+len(s.Spec.Devices), bytes+len(data)
	}
	each := float64(bytes) / float64(devices) / 1000
	b.rows = append(b.rows,
		table.Plain(fmt.Sprintf("slices, JSON a device (%d devices)", devices), fmt.Sprintf("%.2f kB", each), "1.80 kB", each > 1.8),
		table.Plain("slices, objects", fmt.Sprint(len(list.Items)), "12", len(list.Items) > 12))
	return nil
}

// partitions returns claims for a partition of each GPU.
func (b *bench) partitions(ctx context.Context) ([]*drapb.Claim, error) {
	names, err := b.names(ctx)
	if err != nil {
		return nil, err
	}
	for i := range names {
		names[i] += fmt.Sprintf("-mig-%s-%d", strings.ReplaceAll(profile, ".", "-"), start)
	}
	return b.claims(ctx, names, false)
}

// mig compares the Prepare of a partition with the minimum of any implementation. That is NVML's own time to find,
// create and describe it, one and a half floors, and a durable file, the intent.
func (b *bench) mig(ctx context.Context) error {
	claims, err := b.partitions(ctx)
	if err != nil {
		return err
	}
	library := native.New(b.stage.Root) // as the plugin has it
	// The first claim switches the mode on for the second one. The spare GPU is for NVML's own time.
	for _, c := range []*drapb.Claim{claims[0], claims[1]} {
		if err := errors.Join(b.prepare(ctx, c), b.unprepare(ctx, c)); err != nil {
			return err
		}
	}
	var pairs []table.Pair
	for range max(1, b.samples/3) {
		floor, err := b.floor(ctx, claims[0])
		if err != nil {
			return err
		}
		began := time.Now()
		if err := host.New(host.Options{}).WriteDurable("bench", filepath.Join(b.dir, "floor"), make([]byte, 600), 0o600); err != nil {
			return err
		}
		file := time.Since(began)
		own, err := cutDirectly(library, 1)
		if err != nil {
			return err
		}
		began = time.Now()
		if err := b.prepare(ctx, claims[0]); err != nil {
			return err
		}
		pairs = append(pairs, table.Pair{Figure: time.Since(began), Floor: own + floor*3/2 + file})
		if err := b.unprepare(ctx, claims[0]); err != nil {
			return err
		}
	}
	b.ratio("prepare a partition, p50, over NVML + 1.5 floor + file", table.Quantile(table.Figures(pairs), 0.5), table.Quantile(table.Floors(pairs), 0.5), 1.05)
	return b.keep("mig", pairs)
}

// cutDirectly measures NVML's own time for a partition, by the same C library: find the GPU, list its instances, create
// both instances, find the device. Opening a session and destroying the instances are not measured, since the plugin's
// session is open.
func cutDirectly(library nvml.Library, index int) (time.Duration, error) {
	s, err := library.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	began := time.Now()
	d, err := s.Device(index)
	if err != nil {
		return 0, err
	}
	_, _, modeErr := d.MIGMode()
	_, profilesErr := d.GPUInstanceProfiles()
	_, instancesErr := d.GPUInstances()
	gi, err := d.CreateGPUInstance(profileID, nvml.MIGPlacement{Start: start, Size: 1})
	if err := errors.Join(modeErr, profilesErr, instancesErr, err); err != nil {
		return 0, err
	}
	_, profilesErr = gi.ComputeInstanceProfiles()
	ci, err := gi.CreateComputeInstance(0)
	_, devicesErr := d.MIGDevices()
	took := time.Since(began)
	if err := errors.Join(profilesErr, err, devicesErr); err != nil {
		return 0, err
	}
	return took, errors.Join(ci.Destroy(), gi.Destroy())
}

// cutAtOnce compares eight GPUs with one, with hardware's delay for creating partitions.
func (b *bench) cutAtOnce(ctx context.Context) error {
	claims, err := b.partitions(ctx)
	if err != nil {
		return err
	}
	for _, query := range []string{"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"} {
		if err := b.stage.Sim(ctx, "inject", "slow", query, "--latency", "400ms"); err != nil {
			return err
		}
	}
	var one, eight []table.Pair
	for range 5 {
		for n, out := range map[int]*[]table.Pair{1: &one, 8: &eight} {
			began := time.Now()
			errs := make([]error, n)
			var group sync.WaitGroup
			for i := range n {
				group.Go(func() { errs[i] = b.prepare(ctx, claims[i]) })
			}
			group.Wait()
			*out = append(*out, table.Pair{Figure: time.Since(began)})
			for i := range n {
				errs[i] = errors.Join(errs[i], b.unprepare(ctx, claims[i]))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
	}
	b.ratio("eight GPUs cut at once, p50, over one", table.Quantile(table.Figures(eight), 0.5), table.Quantile(table.Figures(one), 0.5), 1.2)
	return b.stage.Sim(ctx, "inject", "clear")
}
