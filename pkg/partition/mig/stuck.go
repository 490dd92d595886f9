// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// StuckSetting names the GPU records of partitions that could not be destroyed.
const StuckSetting = "stuck-partitions"

// errStuck means that a partition of no process cannot be destroyed.
var errStuck = errors.New("the partition is stuck")

const stuckRemedy = "the driver retries in the background; if it persists, stop monitoring agents on the GPU, then " +
	"reset the GPU or reboot the node"

// leaveAfter is the number of failed attempts after which a claim ends without its partition. The kubelet makes each of
// them, and each retries for Options.Timeout, because an ended process releases the GPU with a delay.
const leaveAfter = 3

// stuck holds the partitions of ended claims that NVML does not destroy, although no process uses them. Their records
// block their places until a later attempt, or a reboot, ends them.
type stuck struct {
	records *record.GPUs

	mu sync.Mutex
	// attempts counts failures, by GPU and partition.
	attempts map[string]int
}

func newStuck(records *record.GPUs) *stuck {
	return &stuck{records: records, attempts: map[string]int{}}
}

func (s *stuck) failed(d plan.Device) (attempts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[attemptsOf(d)]++
	return s.attempts[attemptsOf(d)]
}

// ended forgets the attempts for a partition whose claim has ended.
func (s *stuck) ended(d plan.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.attempts, attemptsOf(d))
}

func attemptsOf(d plan.Device) string { return d.PCIAddress + " " + d.Name + " " + d.Partition.UUID }

// leave records a partition that could not be destroyed, after some attempts. It returns nil once the record exists, so
// that the claim can end, and the cause before.
func (x *Executor) leave(d plan.Device, cause error) error {
	left, err := x.stuckOn(d.PCIAddress, d.UUID)
	if err != nil {
		return errors.Join(cause, err)
	}
	if slices.Contains(left, d.Partition) {
		return nil // A crash interrupted the release.
	}
	if x.stuck.failed(d) < leaveAfter {
		return cause
	}
	r, _, err := x.stuck.records.OfBoot(d.PCIAddress, d.UUID)
	if err == nil {
		r.Stuck = append(left, d.Partition)
		err = x.stuck.records.Put(r)
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	x.changed()
	return nil
}

func (x *Executor) changed() {
	if x.o.Changed != nil {
		x.o.Changed.Fire()
	}
}

// stuckOn returns the stuck partitions of a GPU. An unreadable record blocks the whole GPU.
func (x *Executor) stuckOn(address, uuid string) ([]plan.Partition, error) {
	r, err := x.stuck.records.Get(address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, record.ErrUnreadable):
		return []plan.Partition{anywhere}, nil
	case err != nil:
		return nil, err
	}
	boot, err := x.host.BootID()
	if err != nil || r.BootID != boot || uuid != "" && r.UUID != uuid {
		return nil, err // Partitions end with their boot.
	}
	return r.Stuck, nil
}

// anywhere overlaps all partitions.
var anywhere = plan.Partition{Profile: "unknown profile", Size: math.MaxInt32}

// Stuck returns the stuck partitions, by PCI address. An unreadable record is one that takes all of its GPU.
func (x *Executor) Stuck() (map[string][]gpu.Partition, error) {
	addresses, err := x.stuck.records.Addresses()
	if err != nil {
		return nil, err
	}
	out := map[string][]gpu.Partition{}
	for _, address := range addresses {
		left, err := x.stuckOn(address, "")
		if err != nil {
			return nil, err
		}
		for _, p := range left {
			out[address] = append(out[address],
				gpu.Partition{Profile: p.Profile, Placement: p.Placement(), GPUInstance: p.GPUInstance})
		}
	}
	return out, nil
}

// inPlace is the error for a claim that needs the place of stuck partitions.
func inPlace(stuck []plan.Partition) error {
	var names []string
	for _, p := range stuck {
		names = append(names, fmt.Sprintf("%s at slice %d", p.Profile, p.Start))
	}
	return &executor.Busy{
		Obstacle: "a partition of an ended claim is in its place (" + strings.Join(names, ", ") +
			"), because NVML does not destroy it",
		Remedy: stuckRemedy,
	}
}

// stuckPause is the longest time for which a place stays blocked after an administrator has ended what held its
// partition.
const stuckPause = 5 * time.Minute

// StuckSetting is the attempts to destroy stuck partitions, in the form of a setting that is restored.
func (x *Executor) StuckSetting() executor.Setting {
	return executor.Setting{Restorer: retry{x.once()}, Records: x.stuck.records, Longest: stuckPause}
}

// retry makes an attempt for the stuck partitions of a GPU.
type retry struct{ x *Executor }

// NeededBy implements executor.Restorer. An earlier release does not know of stuck partitions, and can have prepared a
// claim on one, as on an external partition.
func (retry) NeededBy(d plan.Device) bool { return d.Kind == gpu.KindMIG && d.Partition.External }

// Restore implements executor.Restorer.
func (r retry) Restore(ctx context.Context, g gpu.GPU) error {
	x := r.x
	left, err := x.stuckOn(g.PCIAddress, g.UUID)
	if err != nil {
		return err
	}
	var stay []plan.Partition
	var failed []error
	for _, p := range left {
		d := plan.Device{
			Kind: gpu.KindMIG, PCIAddress: g.PCIAddress, UUID: g.UUID, Partition: p,
			Name: gpu.Device{Kind: gpu.KindMIG, PCIAddress: g.PCIAddress, Profile: p.Profile, Start: p.Start}.Name(),
		}
		if p.UUID == "" {
			err = x.vacant(ctx, d)
		} else {
			err = explain(ctx, "destroy a partition of an ended claim", d, x.end(ctx, d))
		}
		if err != nil {
			stay, failed = append(stay, p), append(failed, err)
		}
	}
	return errors.Join(append(failed, r.keep(g, left, stay))...)
}

// DropDead implements executor.Dropper: an administrator's reset can have destroyed stuck partitions.
func (r retry) DropDead(g gpu.GPU) error {
	left, err := r.x.stuckOn(g.PCIAddress, g.UUID)
	if err != nil {
		return err
	}
	return r.keep(g, left, slices.DeleteFunc(slices.Clone(left), func(p plan.Partition) bool {
		return !slices.ContainsFunc(g.MIG.Partitions, func(o gpu.Partition) bool {
			return o.Placement.Overlaps(p.Placement())
		})
	}))
}

// keep records those of a GPU's stuck partitions that stay.
func (r retry) keep(g gpu.GPU, left, stay []plan.Partition) error {
	if len(stay) == len(left) && len(left) > 0 {
		return nil
	}
	records := r.x.stuck.records
	kept, _, err := records.OfBoot(g.PCIAddress, g.UUID)
	switch {
	case len(stay) == 0:
		err = records.Remove(g.PCIAddress)
	case err == nil:
		kept.Stuck = stay
		err = records.Put(kept)
	}
	r.x.changed()
	return err
}

// vacant returns an error while an instance is in the place of a partition without a UUID, and destroys none. The
// partition had no device, or its record is unreadable, so the instance can be another program's.
func (x *Executor) vacant(ctx context.Context, d plan.Device) error {
	return x.onGPU(ctx, "find the partitions of ended claims", d, func(g *openGPU) error {
		on, _, err := g.mode()
		if err != nil || !on {
			return err
		}
		there, err := g.instances()
		there = slices.DeleteFunc(there, func(i *instance) bool {
			return !i.placement().Overlaps(d.Partition.Placement())
		})
		if err != nil || len(there) == 0 {
			return err
		}
		return &executor.Busy{
			Obstacle: "the record of a stuck partition does not identify it, and there is " + names(there),
			Remedy:   "the place is available again once that is destroyed (nvidia-smi mig -dgi), or after a reboot",
		}
	})
}
