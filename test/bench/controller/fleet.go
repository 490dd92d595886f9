// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// The nodes' boards.
const (
	cutProfile   = "hgx-h100"
	wholeProfile = "dgx-1-v100"
)

type bench struct {
	options
	log  io.Writer
	rows []table.Row
}

// all runs the parts.
func (b *bench) all(ctx context.Context) error {
	for _, part := range []struct {
		name       string
		cut, whole int
		before     func(*fleetserver.Server)
		run        func(context.Context, *fleetserver.Server, *process) error
	}{
		{"fleet", b.cut, b.whole, func(*fleetserver.Server) {}, b.fleet},
		{"pages", b.cut, b.whole, func(s *fleetserver.Server) { s.WithoutWatchList = true }, b.pages},
		{"small", 4, 4, func(*fleetserver.Server) {}, b.small},
	} {
		if !slices.Contains(strings.Split(b.parts, ","), part.name) {
			continue
		}
		fmt.Fprintf(b.log, "%s: %d nodes\n", part.name, part.cut+part.whole)
		if err := b.with(ctx, part.cut, part.whole, part.before, part.run); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// with runs a part with a controller, which it stops at the end.
func (b *bench) with(ctx context.Context, cut, whole int, before func(*fleetserver.Server), run func(context.Context, *fleetserver.Server, *process) error) (err error) {
	dir, err := os.MkdirTemp(os.Getenv(inside), "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := fleetserver.New()
	if err != nil {
		return err
	}
	for node := range cut + whole {
		profile := cutProfile
		if node >= cut {
			profile = wholeProfile
		}
		if err := s.AddNode(node, profile); err != nil {
			return err
		}
	}
	for name, expression := range map[string]string{
		"gpu.nvidia.com":         "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
		"mig.nvidia.com":         "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'",
		"nvlink.gpu.nvidia.com":  "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'nvlink-group'",
		"monitor.gpu.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'monitor'",
		"nic.example.com":        "device.driver == 'nic.example.com'",
	} {
		s.Add("deviceclasses", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		}})
	}
	s.Add("secrets", s.Secret(namespace, secret))
	before(s)
	if err := s.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, err := startController(b.binary, dir, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return run(ctx, s, p)
}

// expected lists the classes for the nodes: one of each model and one of each profile.
func expected() (int, error) {
	found := map[string]bool{}
	for _, profile := range []string{cutProfile, wholeProfile} {
		published, err := slicetest.Node(profile, "n", 0)
		if err != nil {
			return 0, err
		}
		for _, s := range published {
			for _, d := range s.Spec.Devices {
				for _, name := range []resourceapi.QualifiedName{"productName", "profile"} {
					if v := d.Attributes[name].StringValue; v != nil {
						found[*v] = true
					}
				}
			}
		}
	}
	return len(found), nil
}

// cold waits until every class exists and every node has its labels.
func (b *bench) cold(ctx context.Context, s *fleetserver.Server, p *process, nodes int) (time.Duration, error) {
	classes, err := expected()
	if err != nil {
		return 0, err
	}
	labelled := map[string]bool{}
	last, err := s.Await(ctx, 0, func(w fleetserver.Write) bool {
		switch {
		case w.Resource == "deviceclasses" && w.What == "ADDED":
			classes--
		case w.Resource == "nodes" && w.Object.GetLabels()["nvidia.com/gpu.product"] != "":
			labelled[w.Object.GetName()] = true
		}
		return classes <= 0 && len(labelled) == nodes
	})
	if err != nil {
		return 0, fmt.Errorf("wait for %d more classes and for labels of %d more nodes: %w\n%s", classes, nodes-len(labelled), err, p.log.String())
	}
	return last.At.Sub(p.began), nil
}

// start measures a start with a fleet.
func (b *bench) start(ctx context.Context, s *fleetserver.Server, p *process, how string) error {
	defer b.profileDuring(ctx, how)()
	_, before, err := p.both()
	if err != nil {
		return err
	}
	took, err := b.cold(ctx, s, p, b.cut+b.whole)
	if err != nil {
		return err
	}
	controller, server, err := p.both()
	if err != nil {
		return err
	}
	peak, err := p.memory("VmHWM")
	if err != nil {
		return err
	}
	server -= before
	share := fmt.Sprintf("server %.0f %% of CPU", 100*server.Seconds()/(server+controller).Seconds())
	b.rows = append(b.rows,
		table.Row{Figure: fmt.Sprintf("%d nodes from cold, %s", b.cut+b.whole, how), Value: fmt.Sprintf("%.1f s", took.Seconds()), Floor: share, Ratio: "-", Budget: "30 s", Over: took > 30*time.Second},
		table.Plain("CPU from cold, "+how, fmt.Sprintf("%.1f s", controller.Seconds()), "-", false),
		table.Plain("peak memory, "+how, fmt.Sprintf("%.0f MB", peak), "500 MB", peak > 500))
	return b.profile(ctx, "allocs", "allocs-"+how)
}

// pages measures a start with a server that lists in pages.
func (b *bench) pages(ctx context.Context, s *fleetserver.Server, p *process) error {
	return b.start(ctx, s, p, "in pages")
}

// fleet measures a large cluster.
func (b *bench) fleet(ctx context.Context, s *fleetserver.Server, p *process) error {
	if err := b.start(ctx, s, p, "by watch"); err != nil {
		return err
	}
	if err := b.unchanged(ctx, s, p); err != nil {
		return err
	}
	if err := b.profile(ctx, "heap", "heap"); err != nil {
		return err
	}
	if err := b.scrapes(ctx); err != nil {
		return err
	}
	if err := b.changes(ctx, s); err != nil {
		return err
	}
	return b.review(ctx, s, p, fmt.Sprintf("%d nodes", b.cut+b.whole))
}

// unchanged counts writes while the cluster does not change. The leader renews its lease every few seconds.
func (b *bench) unchanged(ctx context.Context, s *fleetserver.Server, p *process) error {
	// Wait until the controller's own writes have no more effects: no write for a second.
	for before := -1; before != len(s.Writes(0)); {
		before = len(s.Writes(0))
		if err := wait(ctx, time.Second); err != nil {
			return err
		}
	}
	before, _, err := p.both()
	if err != nil {
		return err
	}
	first := len(s.Writes(0))
	if err := wait(ctx, b.still); err != nil {
		return err
	}
	n := 0
	for _, w := range s.Writes(first) {
		if w.Resource != "leases" {
			n++
		}
	}
	after, _, err := p.both()
	if err != nil {
		return err
	}
	rest, err := p.memory("VmRSS")
	if err != nil {
		return err
	}
	b.rows = append(b.rows,
		table.Plain(fmt.Sprintf("writes in %s without a change", b.still), fmt.Sprint(n), "0", n > 0),
		table.Plain("CPU at rest", fmt.Sprintf("%.2f %%", 100*(after-before).Seconds()/b.still.Seconds()), "-", false),
		table.Plain("memory at rest", fmt.Sprintf("%.0f MB", rest), "-", false))
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// scrapes measures /metrics.
func (b *bench) scrapes(ctx context.Context) error {
	var pairs []table.Pair
	for range 20 {
		began := time.Now()
		if _, err := fetch(ctx, metricsAt, "/metrics"); err != nil {
			return err
		}
		pairs = append(pairs, table.Pair{Figure: time.Since(began)})
	}
	b.rows = append(b.rows, table.Plain("scrape of /metrics, p50", table.Millis(table.Quantile(table.Figures(pairs), 0.5)), "-", false))
	return table.Keep(b.raw, "scrape", pairs)
}
