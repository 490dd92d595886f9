// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command try shows what the driver does with the demos, on a simulated board, without a cluster, a GPU or root.
//
//	try                       a line for each demo, and one demo in full
//	try fraction-four         one demo in full
//	try -board dgx-a100-80    on another board of the simulator
//
// The driver's own code publishes the board's devices, plans and prepares the claims and writes the CDI specs. The
// scheduler's own allocator allocates them. Values in memory stand for MPS daemons and nvidia-smi. CDI specs lack the
// libraries and hooks that come from a node's driver.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/test/command"
	"gpu-dra-driver/test/demos"
)

func main() { command.Main("try", run) }

func run(ctx context.Context, args []string, out, log io.Writer) error {
	flags := flag.NewFlagSet("try", flag.ContinueOnError)
	flags.SetOutput(log)
	profile := flags.String("board", "hgx-h100", "the simulated board: "+strings.Join(profiles.Names(), ", "))
	if err := flags.Parse(args); err != nil {
		return err
	}
	tree, err := demos.Tree()
	if err != nil {
		return err
	}
	all, err := demos.List(tree)
	if err != nil {
		return err
	}
	full := flags.NArg() > 0
	if full {
		all = slices.DeleteFunc(all, func(d demos.Demo) bool { return d.Name != flags.Arg(0) })
		if len(all) == 0 || flags.NArg() > 1 {
			return fmt.Errorf("there is no demo %q; the directory demo has them", strings.Join(flags.Args(), " "))
		}
	}
	var results []result
	for _, d := range all {
		r, err := play(ctx, tree, *profile, d)
		if err != nil {
			return fmt.Errorf("demo %s: %w", d.Name, err)
		}
		results = append(results, r)
	}
	if full {
		_, err = io.WriteString(out, formatFull(*profile, results[0]))
		return err
	}
	b, err := newBoard(ctx, tree, *profile, "")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, formatAll(*profile, b, results))
	return err
}

// result is the outcome of a demo.
type result struct {
	demo  demos.Demo
	board *board
	pods  []placed
}

// placed is a pod and why it waits, if it does.
type placed struct {
	*pod
	waits string
	// after says that pods of the same Job ended before it got its devices.
	after bool
	// claims are the pod's as it got them.
	claims []claim
}

// play allocates and prepares the claims of one demo on a board of its own.
func play(ctx context.Context, tree, profile string, d demos.Demo) (result, error) {
	settings := ""
	if d.Settings != "" {
		settings = filepath.Join(tree, "demo", "settings", d.Settings)
	}
	b, err := newBoard(ctx, tree, profile, settings)
	if err != nil {
		return result{}, err
	}
	w, err := read(tree, d, b)
	if err != nil {
		return result{}, err
	}
	for _, class := range w.classes {
		b.classes[class.Name] = class
	}
	// Records are synced to disk, which takes long and is of no use here.
	memory := "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "try-")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	n, err := startNode(b, dir)
	if err != nil {
		return result{}, err
	}
	defer n.host.Close()
	s := &scheduler{board: b, quota: w.quota}
	r := result{demo: d, board: b}
	for i, p := range w.pods {
		if err := ctx.Err(); err != nil {
			return result{}, err
		}
		one := placed{pod: p}
		if one.waits, err = s.place(ctx, p); err != nil {
			return result{}, err
		}
		if one.waits != "" && p.job {
			ended, err := end(ctx, n, s, w.pods[:i])
			if err != nil {
				return result{}, err
			}
			if ended {
				one.after = true
				if one.waits, err = s.place(ctx, p); err != nil {
					return result{}, err
				}
			}
		}
		if one.waits == "" {
			for _, c := range p.claims {
				if c.prepared == nil {
					n.prepare(ctx, c)
				}
				if c.prepared.err != nil {
					one.waits = c.prepared.err.Error()
				}
				held := *c
				held.ResourceClaim = c.DeepCopy()
				one.claims = append(one.claims, held)
			}
		}
		r.pods = append(r.pods, one)
	}
	return r, nil
}

// end ends the pods of Jobs and releases their claims.
func end(ctx context.Context, n *node, s *scheduler, pods []*pod) (ended bool, err error) {
	for _, p := range pods {
		for _, c := range p.claims {
			if !p.job || c.Status.Allocation == nil {
				continue
			}
			if err := n.unprepare(ctx, c); err != nil {
				return false, err
			}
			s.release(c)
			ended = true
		}
	}
	return ended, nil
}
