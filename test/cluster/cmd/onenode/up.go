// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/test/cluster/internal/control"
	"gpu-dra-driver/test/cluster/internal/node"
	"gpu-dra-driver/test/cluster/internal/owner"
	"gpu-dra-driver/test/cluster/internal/recipe"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// downTimeout limits the time of removing a cluster.
const downTimeout = time.Minute

// upOptions are the common options of up and run.
type upOptions struct {
	kubernetes           string
	gates, runtimeConfig string
	keepLogs             bool
	nodes                int
	sync                 time.Duration
}

func (f *flags) withUp(o *upOptions) *flags {
	f.withDir().withKubernetes(&o.kubernetes)
	f.StringVar(&o.gates, "feature-gates", "", "feature gates of every component, name=true|false, by commas")
	f.StringVar(&o.runtimeConfig, "runtime-config", "", "API versions to serve, group/version=true|false, by commas")
	f.IntVar(&o.nodes, "nodes", 1, "how many nodes")
	f.DurationVar(&o.sync, "sync-frequency", 10*time.Second, "how often kubelets look at their pods without a cause; 0 for their default, a minute")
	f.BoolVar(&o.keepLogs, "keep-logs", false, "leave DIR/logs when the cluster ends")
	return f
}

func up(ctx context.Context, args []string, std streams) error {
	var o upOptions
	f := newFlags("up", std).withUp(&o)
	if rest, err := f.parse(args); err != nil || len(rest) > 0 {
		return errors.Join(err, unexpected(rest))
	}
	s, err := bringUp(ctx, f.dir, o, false, std)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "export KUBECONFIG=%s\n", s.Kubeconfig())
	return err
}

// bringUp builds missing programs and starts a cluster. After an error it removes the cluster.
func bringUp(ctx context.Context, dir string, o upOptions, tethered bool, std streams) (spec.Spec, error) {
	start := time.Now()
	s, err := newSpec(dir, o)
	if err != nil {
		return s, err
	}
	// Before the build, so that the error for a used directory comes at once.
	lock, err := claim(s.Dir)
	if err != nil {
		return s, err
	}
	if s.Bins, err = built(ctx, o.kubernetes, std); err == nil {
		err = prepare(s, o)
	}
	if err != nil {
		return s, errors.Join(err, os.RemoveAll(s.Dir), lock.Close())
	}
	done := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { done <- owner.Kill(s.Dir) })
	err = owner.Start(s, lock, tethered, func(r node.Report) {
		fmt.Fprintf(std.err, "%6.1fs  %s\n", r.Took.Seconds(), r.Step)
	})
	if !stop() {
		<-done
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return s, errors.Join(fmt.Errorf("cluster in %s did not come up: %w", s.Dir, err), waitGone(s))
	}
	fmt.Fprintf(std.err, "%6.1fs  Kubernetes %s is up in %s\n", time.Since(start).Seconds(), s.Kubernetes, s.Dir)
	return spec.Load(s.Dir)
}

func newSpec(dir string, o upOptions) (spec.Spec, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return spec.Spec{}, err
	}
	version, err := recipe.ParseVersion(o.kubernetes)
	if err != nil {
		return spec.Spec{}, err
	}
	if o.nodes < 1 || o.nodes > spec.MaxNodes {
		return spec.Spec{}, fmt.Errorf("--nodes %d: want 1 to %d", o.nodes, spec.MaxNodes)
	}
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return spec.Spec{}, err
	}
	s := spec.Spec{ID: hex.EncodeToString(id), Dir: dir, Kubernetes: version.String(), Nodes: o.nodes}
	if s.FeatureGates, err = pairs("--feature-gates", o.gates); err != nil {
		return s, err
	}
	if o.sync != 0 {
		s.Sync = o.sync.String()
	}
	s.RuntimeConfig, err = pairs("--runtime-config", o.runtimeConfig)
	return s, err
}

// pairs splits name=value lists.
func pairs(flag, value string) ([]string, error) {
	if value == "" {
		return nil, nil
	}
	list := strings.Split(value, ",")
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); !ok || k == "" || v != "true" && v != "false" {
			return nil, fmt.Errorf("%s %q: want name=true or name=false", flag, kv)
		}
	}
	return list, nil
}

// claim takes over the directory: it must be empty, or hold a cluster whose processes are gone.
func claim(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if slices.Contains(names, spec.File) {
		return claimLeftover(dir)
	}
	for _, name := range names {
		if name != "logs" && name != "lock" {
			return nil, fmt.Errorf("%s is not empty (it has %s): name a directory of the cluster's own, which is removed with it", dir, name)
		}
	}
	return spec.Lock(dir)
}

// claimLeftover removes a cluster whose processes are gone.
func claimLeftover(dir string) (*os.File, error) {
	lock, err := spec.Lock(dir)
	if err != nil {
		return nil, err
	}
	left, err := spec.Load(dir)
	if err == nil {
		err = owner.Clean(left)
	}
	if lock.Close(); err != nil && !errors.Is(err, spec.ErrNoCluster) {
		return nil, fmt.Errorf("remove what a cluster has left in %s: %w", dir, err)
	}
	return claim(dir)
}

func prepare(s spec.Spec, o upOptions) error {
	for _, dir := range []string{"logs", "conf"} {
		if err := os.MkdirAll(s.Path(dir), 0o700); err != nil {
			return err
		}
	}
	if o.keepLogs {
		if err := owner.KeepLogs(s.Dir); err != nil {
			return err
		}
	}
	return s.Save()
}

func down(ctx context.Context, args []string, std streams) error {
	f := newFlags("down", std).withDir()
	keep := f.Bool("keep-logs", false, "leave DIR/logs")
	if rest, err := f.parse(args); err != nil || len(rest) > 0 {
		return errors.Join(err, unexpected(rest))
	}
	s, err := spec.Load(f.dir)
	if err != nil {
		return err
	}
	if *keep {
		if err := owner.KeepLogs(s.Dir); err != nil {
			return err
		}
	}
	return takeDown(s)
}

// takeDown ends a cluster and waits until everything is removed.
func takeDown(s spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	go control.Call(s.Dir, control.Request{Verb: "down"}) // the node ends without an answer
	if spec.WaitGone(ctx, s.Dir) != nil {
		// The node did not answer, or its processes take long to exit.
		if err := owner.Kill(s.Dir); err != nil {
			return err
		}
	}
	return waitGone(s)
}

func waitGone(s spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	if err := spec.WaitGone(ctx, s.Dir); err != nil {
		return err
	}
	// The watcher removes it as well, unless it was killed.
	if _, err := os.Stat(s.Path(spec.File)); err != nil {
		return nil
	}
	return owner.Clean(s)
}

func unexpected(rest []string) error {
	if len(rest) == 0 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q", rest[0])
}
