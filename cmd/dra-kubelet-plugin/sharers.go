// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/computepolicy"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/executor/mps"
	"gpu-dra-driver/pkg/executor/timeslice"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// sharers are the executors of shares.
type sharers struct {
	executors map[string]devicestate.Executor
	mps       *mps.Executor
	// watched says that the node has MPS, whose daemons are to be watched.
	watched bool
}

// mpsDir is where the daemons are, or were while the node had MPS: what was prepared then must end all the same.
func mpsDir(c flags.Config) string {
	if c.MPSDir != "" {
		return c.MPSDir
	}
	return filepath.Join(c.KubeletPluginsDir, c.DriverName, "mps")
}

// newSharers opens the records of the settings that shares change; there says whether the driver lists a GPU.
func newSharers(machine *host.Host, sessions *sessionpool.Pool, dir string, c flags.Config, there func(uuid string) bool) (*sharers, error) {
	modes, err := record.OpenGPUs(machine, dir, mps.Setting)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's state: %w", err)
	}
	slices, err := record.OpenGPUs(machine, dir, timeslice.Setting)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's state: %w", err)
	}
	s := &sharers{executors: map[string]devicestate.Executor{
		plan.TimeSliceExecutor: timeslice.New(computepolicy.SMI{Root: c.ContainerDriverRoot}, slices, there),
	}}
	s.watched = c.MPSDir != ""
	s.mps = mps.New(machine, sessions, mpsd.NewClient(filepath.Join(mpsDir(c), mpsd.SocketName)), modes, c.ProcRoot)
	s.executors[plan.MPSExecutor] = s.mps
	return s, nil
}

// keeper watches the MPS daemons; nil where there are none.
func (s *sharers) keeper(engine *devicestate.Engine, report func(error)) *mps.Watcher {
	if !s.watched {
		return nil
	}
	return mps.NewWatcher(s.mps, engine, report)
}

// keep runs what watches beside the calls of the kubelet.
func keep(ctx context.Context, s *settings, k *mps.Watcher) {
	var wg sync.WaitGroup
	wg.Go(func() { s.watch(ctx) })
	if k != nil {
		wg.Go(func() { k.Run(ctx) })
	}
	wg.Wait()
}
