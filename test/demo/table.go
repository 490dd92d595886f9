// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/test/e2e/env"
)

// atOnce is how many of the small demos there is room for on eight GPUs.
const atOnce = 4

// all runs the demos, the small ones side by side, and prints a row for each container.
func all(ctx context.Context, s *env.Env, out io.Writer) error {
	demos, err := s.Demos()
	if err != nil {
		return err
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DEMO\tPOD/CONTAINER\tCLAIM\tDEVICE\tIN THE CONTAINER\tENVIRONMENT\tMOUNTS")
	rows := make([]bytes.Buffer, len(demos))
	var small []int
	var titles []string
	// Those with settings of their own come last.
	slices.SortStableFunc(demos, func(a, b env.Demo) int { return strings.Compare(a.Settings, b.Settings) })
	var set []int
	for i, d := range demos {
		if d.Settings != "" {
			set = append(set, i)
			continue
		}
		if d.Alone {
			if err := s.Step(d.Name+": "+d.Title, func() error { return one(ctx, s, d, &rows[i]) }); err != nil {
				return err
			}
			continue
		}
		small, titles = append(small, i), append(titles, d.Name+": "+d.Title)
	}
	if err := s.Parallel(atOnce, titles, func(n int) error { return one(ctx, s, demos[small[n]], &rows[small[n]]) }); err != nil {
		return err
	}
	for _, i := range set {
		d := demos[i]
		if err := s.Configure(ctx, d.Settings); err != nil {
			return err
		}
		if err := s.Step(d.Name+": "+d.Title, func() error { return one(ctx, s, d, &rows[i]) }); err != nil {
			return err
		}
	}
	for i := range rows {
		if _, err := rows[i].WriteTo(w); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(out, "\n"+table.String())
	return err
}

// manyPods is how many pods of a demo get a row.
const manyPods = 8

func one(ctx context.Context, s *env.Env, d env.Demo, w io.Writer) error {
	if err := s.Apply(ctx, d); err != nil {
		return err
	}
	pods, err := s.WaitSettled(ctx, d)
	if err != nil {
		return err
	}
	for i, p := range pods {
		if i == manyPods {
			fmt.Fprintf(w, "%s\t… and %d more pods\t\t\t\t\t\n", d.Name, len(pods)-i)
			break
		}
		if p.Status.Phase == corev1.PodPending {
			fmt.Fprintf(w, "%s\t%s\t-\tnone\t%s\t\t\n", d.Name, p.Name, reason(s.PendingReason(ctx, p)))
			continue
		}
		if err := rows(ctx, s, d, p, w); err != nil {
			return err
		}
	}
	return s.Remove(ctx, d)
}

func rows(ctx context.Context, s *env.Env, d env.Demo, p corev1.Pod, w io.Writer) error {
	claims, err := s.Claims(ctx, p)
	if err != nil {
		return err
	}
	var names, devices []string
	for _, c := range claims {
		names = append(names, c.Name)
		for _, r := range env.Results(c) {
			devices = append(devices, r.Device)
		}
	}
	for _, c := range p.Spec.Containers {
		view, err := s.Inspect(ctx, p.Namespace, p.Name, c.Name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\t%s\t%s\t%d\n", d.Name, p.Name, c.Name, strings.Join(names, " "), brief(devices),
			brief(append(view.GPUs(), view.Capabilities()...)), environment(view), len(view.Mounts))
	}
	return nil
}

// brief shortens a long list to its ends.
func brief(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	if len(list) <= 3 {
		return strings.Join(list, " ")
	}
	return fmt.Sprintf("%s … %s (%d)", list[0], list[len(list)-1], len(list))
}

func environment(v env.View) string {
	if share, ok := v.Env["NVIDIA_DRA_SHARE_MEMORY_MIB"]; ok {
		return v.Env["NVIDIA_DRA_SHARING_STRATEGY"] + ", " + share + " MiB" + allocated(v.CUDA)
	}
	if strategy, ok := v.Env["NVIDIA_DRA_SHARING_STRATEGY"]; ok {
		return strategy + allocated(v.CUDA)
	}
	if told, ok := v.Env["CUDA_VISIBLE_DEVICES"]; ok {
		return fmt.Sprintf("CUDA_VISIBLE_DEVICES of %d, NCCL_TOPO_FILE of %d lines", strings.Count(told, ",")+1, strings.Count(v.NCCLTopology, "\n"))
	}
	if value, ok := v.Env["NVIDIA_VISIBLE_DEVICES"]; ok {
		return "NVIDIA_VISIBLE_DEVICES=" + value
	}
	return "-"
}

// allocated says what a process of CUDA got of the memory that it asked for.
func allocated(c env.CUDA) string {
	out := ""
	for _, a := range c.Allocs {
		mark := "ok"
		if !a.OK {
			mark = a.Error
		}
		out += fmt.Sprintf(", %d GiB %s", a.Bytes>>30, mark)
	}
	return out
}

// reason is why a pod waits, without what the scheduler says of preemption and what it is that a quota forbids.
func reason(why string) string {
	if _, after, ok := strings.Cut(why, "is forbidden: "); ok {
		return after
	}
	why, _, _ = strings.Cut(why, ". preemption")
	return why
}
