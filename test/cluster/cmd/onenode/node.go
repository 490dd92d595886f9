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
	"text/tabwriter"
	"time"

	"gpu-dra-driver/test/cluster/internal/control"
	"gpu-dra-driver/test/cluster/internal/spec"
)

func status(ctx context.Context, args []string, std streams) error {
	s, rest, err := existing("status", args, std)
	if err != nil || len(rest) > 0 {
		return errors.Join(err, unexpected(rest))
	}
	fmt.Fprintf(std.out, "Kubernetes %s, KUBECONFIG=%s\n", s.Kubernetes, s.Kubeconfig())
	w := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	heading, node := "", ""
	if s.Nodes > 1 {
		heading = "NODE\t"
	}
	fmt.Fprintln(w, heading+"COMPONENT\tPID\tSTATE\tSINCE")
	for _, number := range s.Members() {
		response, err := control.Call(s.On(number).ControlDir(), control.Request{Verb: "status"})
		if err != nil {
			return err
		}
		if s.Nodes > 1 {
			node = fmt.Sprintf("%d\t", number)
		}
		for _, c := range response.Status {
			fmt.Fprintf(w, "%s%s\n", node, row(c))
		}
	}
	return w.Flush()
}

// row is a component's line of the table.
func row(c control.Status) string {
	pid, since := "-", "-"
	if c.PID != 0 {
		pid = fmt.Sprint(c.PID)
	}
	if !c.Since.IsZero() {
		since = c.Since.Format(time.DateTime)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", c.Component, pid, c.State, since)
}

func logs(ctx context.Context, args []string, std streams) error {
	s, rest, err := existing("logs", args, std)
	if err != nil {
		return err
	}
	if len(rest) == 1 {
		f, err := os.Open(s.Log(strings.TrimSuffix(rest[0], ".log")))
		if err == nil {
			defer f.Close()
			_, err = io.Copy(std.out, f)
			return err
		}
	}
	entries, err := os.ReadDir(s.Path("logs"))
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".log"))
	}
	return fmt.Errorf("logs takes one of %s", strings.Join(names, ", "))
}

// component is a command that the node runs for one component, or, for reboot, for itself.
func component(verb string) func(context.Context, []string, streams) error {
	return func(ctx context.Context, args []string, std streams) error {
		s, rest, err := existingNode(verb, args, std)
		if err != nil {
			return err
		}
		request := control.Request{Verb: verb}
		if verb != "reboot" {
			if len(rest) != 1 {
				return fmt.Errorf("%s takes one component, got %d", verb, len(rest))
			}
			request.Component = rest[0]
		} else if len(rest) > 0 {
			return unexpected(rest)
		}
		_, err = control.Call(s.ControlDir(), request)
		return err
	}
}

func execute(ctx context.Context, args []string, std streams) error {
	s, rest, err := existingNode("exec", args, std)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return errors.New("exec needs a command: onenode exec --dir DIR -- CMD")
	}
	return execIn(ctx, s, rest, std.in, std.out, std.err)
}

func execIn(ctx context.Context, s spec.Spec, argv []string, in, out, errs *os.File) error {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	type result struct {
		response control.Response
		err      error
	}
	done := make(chan result, 1)
	go func() {
		response, err := control.Call(s.ControlDir(), control.Request{Verb: "exec", Args: argv, Dir: dir, Env: os.Environ()}, in, out, errs)
		done <- result{response, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && r.response.ExitCode != 0 {
			return exitCode(r.response.ExitCode)
		}
		return r.err
	case <-ctx.Done():
		return exitCode(130) // the node ends the program when this process, its caller, is gone
	}
}

func load(ctx context.Context, args []string, std streams) error {
	s, archives, err := existing("load", args, std)
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return errors.New("load needs image archives")
	}
	for _, archive := range archives {
		for _, number := range s.Members() {
			if err := loadOn(ctx, s.On(number), archive, std); err != nil {
				return fmt.Errorf("load %s on %s: %w", archive, s.On(number).NodeName(), err)
			}
		}
	}
	return nil
}

func loadOn(ctx context.Context, s spec.Spec, archive string, std streams) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := execIn(ctx, s, []string{"ctr", "--namespace", "k8s.io", "images", "import", "-"}, f, std.err, std.err); err != nil {
		return fmt.Errorf("ctr images import: %w", err)
	}
	return nil
}

// existingNode parses the flags of a command for one node of an existing cluster.
func existingNode(verb string, args []string, std streams) (spec.Spec, []string, error) {
	f := newFlags(verb, std).withDir()
	number := f.Int("node", 1, "the number of the node")
	rest, err := f.parse(args)
	if err != nil {
		return spec.Spec{}, nil, err
	}
	s, err := spec.Load(f.dir)
	if err == nil && !slices.Contains(s.Members(), *number) {
		err = fmt.Errorf("--node %d: the cluster in %s has nodes 1 to %d", *number, s.Dir, max(1, s.Nodes))
	}
	return s.On(*number), rest, err
}

// existing parses the flags of a command for an existing cluster.
func existing(verb string, args []string, std streams) (spec.Spec, []string, error) {
	f := newFlags(verb, std).withDir()
	rest, err := f.parse(args)
	if err != nil {
		return spec.Spec{}, nil, err
	}
	s, err := spec.Load(f.dir)
	return s, rest, err
}
