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

	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// StuckSetting names the GPU records of partitions that could not be destroyed.
const StuckSetting = "stuck-partitions"

// errStuck means that a partition of no process cannot be destroyed.
var errStuck = errors.New("the partition is stuck")

const stuckRemedy = "the driver retries in the background; if it persists, stop monitoring agents on the GPU, then reset the GPU or reboot the node"

// leaveAfter is the number of failed attempts after which a claim ends without its partition. The kubelet makes each of them,
// and each retries for Options.Timeout, because an ended process releases the GPU with a delay.
const leaveAfter = 3

// stuck holds the partitions of ended claims that NVML does not destroy, although no process uses them. Their records block
// their places until a later attempt, or a reboot, ends them.
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
	key := d.PCIAddress + " " + d.Name + " " + d.Partition.UUID
	s.attempts[key]++
	if attempts = s.attempts[key]; attempts >= leaveAfter {
		delete(s.attempts, key)
	}
	return attempts
}

// leave records a partition that could not be destroyed, after some attempts. It returns nil once the record exists, so that
// the claim can end, and the cause before.
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
			out[address] = append(out[address], gpu.Partition{Profile: p.Profile, Placement: p.Placement(), GPUInstance: p.GPUInstance})
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
		Obstacle: "a partition of an ended claim is in its place (" + strings.Join(names, ", ") + "), because NVML does not destroy it",
		Remedy:   stuckRemedy,
	}
}

// StuckSetting is the attempts to destroy stuck partitions, in the form of a setting that is restored.
func (x *Executor) StuckSetting() executor.Setting {
	return executor.Setting{Restorer: retry{x.once()}, Records: x.stuck.records}
}

// retry makes an attempt for the stuck partitions of a GPU.
type retry struct{ x *Executor }

// NeededBy implements executor.Restorer. An earlier release does not know of stuck partitions, and can have prepared a claim
// on one, as on an external partition.
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
		if p == anywhere {
			err = x.empty(ctx, d)
		} else {
			err = explain(ctx, "destroy a partition of an ended claim", d, x.end(ctx, d))
		}
		if err != nil {
			stay, failed = append(stay, p), append(failed, err)
		}
	}
	switch {
	case len(stay) == 0:
		err = x.stuck.records.Remove(g.PCIAddress)
	case len(stay) < len(left):
		var r record.GPU
		if r, _, err = x.stuck.records.OfBoot(g.PCIAddress, g.UUID); err == nil {
			r.Stuck = stay
			err = x.stuck.records.Put(r)
		}
	}
	if len(stay) < len(left) || len(left) == 0 {
		x.changed()
	}
	return errors.Join(append(failed, err)...)
}

// empty returns an error unless the GPU has no instance, so that none of them can be stuck.
func (x *Executor) empty(ctx context.Context, d plan.Device) error {
	return x.onGPU(ctx, "find the partitions of ended claims", d, func(g *openGPU) error {
		on, _, err := g.mode()
		if err != nil || !on {
			return err
		}
		there, err := g.instances()
		if err != nil || len(there) == 0 {
			return err
		}
		return &executor.Busy{
			Obstacle: "the record of its stuck partitions is unreadable, and it has " + names(there),
			Remedy:   "its partitions are available again once all of them are destroyed, or after a reboot; check the node's disk",
		}
	})
}
