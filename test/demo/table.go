// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/test/e2e/env"
	"gpu-dra-driver/test/table"
)

// atOnce is the number of small demos that fit on eight GPUs.
const atOnce = 4

// play runs the named demos, or all, the small ones side by side, and prints a table of what their containers have.
func play(ctx context.Context, s *env.Env, names []string, out io.Writer) error {
	demos, err := s.Demos()
	if err != nil {
		return err
	}
	if demos, err = named(demos, names); err != nil {
		return err
	}
	// Demos that need other settings come last.
	slices.SortStableFunc(demos, func(a, b env.Demo) int { return strings.Compare(a.Settings, b.Settings) })
	results := make([]result, len(demos))
	run := func(i int) (err error) {
		results[i], err = one(ctx, s, demos[i])
		return err
	}
	var small, configured []int
	var titles []string
	for i, d := range demos {
		switch {
		case d.Settings != "":
			configured = append(configured, i)
		case d.Alone:
			if err := s.Step(title(d), func() error { return run(i) }); err != nil {
				return err
			}
		default:
			small, titles = append(small, i), append(titles, title(d))
		}
	}
	if err := s.Parallel(atOnce, titles, func(n int) error { return run(small[n]) }); err != nil {
		return err
	}
	for _, i := range configured {
		if err := s.Configure(ctx, demos[i].Settings); err != nil {
			return err
		}
		if err := s.Step(title(demos[i]), func() error { return run(i) }); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, "\n"+format(results)+"\nkubectl gpu layout, at the busiest moment:\n\n"+busiest(results)+paid(results)+stories(results))
	return err
}

// named returns the demos with the names, or all if there are no names.
func named(demos []env.Demo, names []string) ([]env.Demo, error) {
	if len(names) == 0 {
		return demos, nil
	}
	var out []env.Demo
	for _, name := range names {
		i := slices.IndexFunc(demos, func(d env.Demo) bool { return d.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no demo %q: demo/ has %s", name, strings.Join(nameList(demos), ", "))
		}
		out = append(out, demos[i])
	}
	return out, nil
}

func nameList(demos []env.Demo) []string {
	var out []string
	for _, d := range demos {
		out = append(out, d.Name)
	}
	return out
}

// paid returns the use and cost of the pods of the demo that shows them.
func paid(results []result) string {
	for _, r := range results {
		if r.cost != "" {
			return "\n" + title(r.demo) + ", with H100s at 2 an hour:\n\n" + r.cost
		}
	}
	return ""
}

// stories returns what a terminal shows of the demos that have steps.
func stories(results []result) string {
	var b strings.Builder
	for _, r := range results {
		if r.story != "" {
			fmt.Fprintf(&b, "\n%s\n\n%s", title(r.demo), r.story)
		}
	}
	return b.String()
}

// busiest returns the layout with the most claims: each has a line.
func busiest(results []result) (layout string) {
	for _, r := range results {
		if strings.Count(r.layout, "\n") > strings.Count(layout, "\n") {
			layout = r.layout
		}
	}
	return layout
}

func title(d env.Demo) string { return d.Name + ": " + d.Title }

// result is the outcome of a demo.
type result struct {
	demo          env.Demo
	ran, waited   int
	pods, waiting [][]string
	// story has the demo's steps with their output, or its fault.
	story string
	// layout is the output of `kubectl gpu layout` while the demo ran, beside the other demos of the moment.
	layout string
	// cost is the use and cost of the pods of priced.
	cost string
}

// width is the table's width.
const width = 120

// format groups the results by demo.
func format(results []result) string {
	t := &table.Table{}
	t.Row("POD", "DEVICE", "DEVICE NODES", "ENVIRONMENT")
	ran, waited := 0, 0
	for _, r := range results {
		t.Row()
		t.Row(title(r.demo))
		for _, row := range slices.Concat(r.pods, r.waiting) {
			t.Row(append([]string{"  " + row[0]}, row[1:]...)...)
		}
		ran, waited = ran+r.ran, waited+r.waited
	}
	t.Row()
	t.Row(fmt.Sprintf("%d demos. %d pods ran; %d waited, as their demos say.", len(results), ran, waited))
	return t.Format(width)
}

// manyPods is how many pods of a demo get a row.
const manyPods = 8

func one(ctx context.Context, s *env.Env, d env.Demo) (result, error) {
	r := result{demo: d}
	if err := s.Apply(ctx, d); err != nil {
		return r, err
	}
	pods, err := s.WaitSettled(ctx, d)
	if err != nil {
		return r, err
	}
	if len(d.Steps) > 0 {
		if r.story, err = s.Play(ctx, d); err != nil {
			return r, err
		}
		if pods, err = s.WaitSettled(ctx, d.AfterSteps()); err != nil {
			return r, err
		}
	}
	if f, ok := faults[d.Name]; ok {
		if r.story, err = f.show(ctx, s, d, pods[0]); err != nil {
			return r, err
		}
		if pods, err = s.WaitSettled(ctx, d); err != nil {
			return r, err
		}
	}
	if r.layout, err = s.KubectlGPU(ctx, "layout"); err != nil {
		return r, err
	}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodPending {
			r.waited++
			r.waiting = append(r.waiting, []string{p.Name, "waits: " + reason(s.PendingReason(ctx, p))})
			continue
		}
		if r.ran++; r.ran > manyPods {
			continue
		}
		if err := r.add(ctx, s, p); err != nil {
			return r, err
		}
	}
	if d.Name == priced {
		if r.cost, err = cost(ctx, s, pods); err != nil {
			return r, err
		}
	}
	if more := r.ran - manyPods; more > 0 {
		r.pods = append(r.pods, []string{fmt.Sprintf("… and %d more pods", more)})
	}
	return r, s.Remove(ctx, d)
}

// add appends a row for each container of a pod.
func (r *result) add(ctx context.Context, s *env.Env, p corev1.Pod) error {
	claims, err := s.Claims(ctx, p)
	if err != nil {
		return err
	}
	var devices []string
	for _, c := range claims {
		for _, result := range env.Results(c) {
			devices = append(devices, result.Device)
		}
	}
	for _, c := range p.Spec.Containers {
		view, err := s.Inspect(ctx, p.Namespace, p.Name, c.Name)
		if err != nil {
			return err
		}
		name := p.Name
		if len(p.Spec.Containers) > 1 {
			name += "/" + c.Name
		}
		r.pods = append(r.pods, []string{name, brief(devices), brief(append(view.GPUs(), view.Capabilities()...)), environment(view)})
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
		return v.Env["NVIDIA_DRA_SHARING_STRATEGY"] + ", " + share + " MiB" + allocations(v.CUDA)
	}
	if strategy, ok := v.Env["NVIDIA_DRA_SHARING_STRATEGY"]; ok {
		return strategy + allocations(v.CUDA)
	}
	if visible, ok := v.Env["CUDA_VISIBLE_DEVICES"]; ok {
		return fmt.Sprintf("CUDA_VISIBLE_DEVICES of %d GPUs, NCCL_TOPO_FILE of %d lines",
			strings.Count(visible, ",")+1, strings.Count(v.NCCLTopology, "\n"))
	}
	if value, ok := v.Env["NVIDIA_VISIBLE_DEVICES"]; ok {
		return "NVIDIA_VISIBLE_DEVICES=" + value
	}
	return "-"
}

// allocations lists the successful allocations of memory of a CUDA process.
func allocations(c env.CUDA) string {
	out := ""
	for _, a := range c.Allocs {
		if a.OK {
			out += fmt.Sprintf("; %d GiB allocated", a.Bytes>>30)
		} else {
			out += fmt.Sprintf("; %d GiB refused: %s", a.Bytes>>30, a.Error)
		}
	}
	return out
}

// reason returns why a pod is pending, without the scheduler's text about preemption and the name of the object that
// a quota forbids.
func reason(why string) string {
	if _, after, ok := strings.Cut(why, "is forbidden: "); ok {
		return after
	}
	why, _, _ = strings.Cut(why, ". preemption")
	return why
}
