// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

// CheckClean fails the test unless exactly the given claims are prepared, nothing of other claims remains, and external
// state is unchanged.
func (e *Env) CheckClean(p *Process, prepared ...string) {
	e.T.Helper()
	slices.Sort(prepared)
	c := &check{Env: e, prepared: prepared}
	if err := p.Check(); err != nil {
		c.problems = append(c.problems, strings.Split(err.Error(), "\n")...)
	}
	plans, incomplete, err := p.Held()
	if err != nil || incomplete {
		c.problem("held: incomplete %v, %v", incomplete, err)
	}
	c.files(plans)
	if e.Sim != nil {
		c.partitions(p, plans)
		c.shares(plans)
	}
	if len(c.problems) > 0 {
		e.T.Fatalf("with %v prepared:\n  %s", prepared, strings.Join(c.problems, "\n  "))
	}
}

type check struct {
	*Env
	prepared []string
	problems []string
}

func (c *check) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// files checks records, specs and the files of steps.
func (c *check) files(plans []plan.Plan) {
	if got, err := os.ReadFile(filepath.Join(c.CDI, External)); !c.noExternal &&
		(err != nil || string(got) != ExternalText) {
		c.problem("another driver's spec was touched: %q, %v", got, err)
	}
	for _, f := range c.Unfinished() {
		c.problem("unfinished file %s", f)
	}
	steps, uids := []string{}, []string{}
	for _, held := range plans {
		uids = append(uids, held.Claim.UID)
		if !c.ofThisBoot(held.Claim.UID) {
			continue // Its effects ended with their boot.
		}
		for _, s := range held.Steps {
			if s.Executor == "file" {
				steps = append(steps, fileOf(s))
			}
		}
	}
	if !slices.Equal(uids, c.prepared) {
		c.problem("records of %v", uids)
	}
	slices.Sort(steps)
	if got := c.list(c.StepFiles); !slices.Equal(got, steps) {
		c.problem("files of steps %v, want %v", got, steps)
	}
	for _, f := range slices.Concat(c.list(c.CDI), c.list(c.Mounted())) {
		uid, _, _ := strings.Cut(strings.TrimPrefix(f, "k8s."+Driver+"-claim_"), ".")
		if f != External && !slices.Contains(c.prepared, uid) {
			c.problem("left over: %s", f)
		}
	}
	// Lock files, the quarantine and the settings of GPUs may stay.
	for _, f := range c.list(c.StateDir) {
		stays := strings.HasPrefix(f, "locks/") || strings.HasPrefix(f, "records/quarantine/") ||
			strings.HasPrefix(f, "gpus/")
		if len(c.prepared) == 0 && !stays {
			c.problem("left over: %s", f)
		}
	}
}

// ofThisBoot reports whether a claim was prepared in this boot.
func (c *check) ofThisBoot(uid string) bool {
	if c.Boots == 1 {
		return true
	}
	data, err := os.ReadFile(c.RecordFile(uid))
	c.Must(err)
	r, err := record.Decode(data, uid)
	c.Must(err)
	return r.BootID == fmt.Sprintf("boot-%d", c.Boots)
}

// list returns the files below a directory, by relative path.
func (e *Env) list(dir string) []string {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		e.Must(err)
	}
	return out
}

// Unfinished lists a crash's temporary files, except those of GPU settings, which stay until the setting's next write.
func (e *Env) Unfinished() (out []string) {
	for _, dir := range []string{e.StateDir, e.CDI, e.StepFiles} {
		for _, f := range e.list(dir) {
			if strings.HasSuffix(f, ".tmp") && !strings.HasPrefix(f, "gpus/") {
				out = append(out, f)
			}
		}
	}
	return out
}

// partitions checks that each MIG instance and each MIG mode belongs to a prepared claim or to an administrator.
func (c *check) partitions(p *Process, plans []plan.Plan) {
	owned := map[string]string{}
	for _, held := range plans {
		for _, d := range held.Devices {
			if d.Kind == gpu.KindMIG && !d.Partition.External && slices.Contains(c.prepared, held.Claim.UID) {
				owned[bareName(d.PCIAddress, d.Partition.Start)] = d.Partition.UUID
			}
		}
	}
	stuck, err := p.MIG.Stuck()
	if err != nil {
		c.problem("%v", err)
	}
	external := maps.Clone(c.Sim.External)
	switched, err := p.MIG.Switched()
	if err != nil {
		c.problem("%v", err)
	}
	for _, g := range c.Sim.State().GPUs {
		for _, i := range g.Instances {
			at := bareName(g.Address, i.Start)
			uuid := at
			if len(i.Computes) == 1 {
				uuid = i.Computes[0].UUID
			}
			switch {
			case external[uuid]:
				delete(external, uuid)
			case owned[at] == uuid:
				delete(owned, at)
			case slices.ContainsFunc(stuck[g.Address], func(p gpu.Partition) bool {
				return p.Placement.Start == i.Start
			}):
			default:
				c.problem("leaked: %s, %s (%d compute instances)", at, uuid, len(i.Computes))
			}
		}
		if g.MIGEnabled && !c.Sim.ExternalModes[g.Address] && !switched[g.Address] {
			c.problem("the MIG mode of %s is on, and neither a record nor an administrator explains it", g.Address)
		}
		if !g.MIGEnabled && c.Sim.ExternalModes[g.Address] {
			c.problem("an administrator's MIG mode of %s is off", g.Address)
		}
		if g.MIGPending != g.MIGEnabled {
			c.problem("the MIG mode of %s is pending", g.Address)
		}
	}
	for at, uuid := range owned {
		c.problem("lost: %s, %s", at, uuid)
	}
	for uuid := range external {
		c.problem("external and gone: %s", uuid)
	}
}

// shares checks that MPS daemons, compute modes and time slices fit the prepared claims.
func (c *check) shares(plans []plan.Plan) {
	daemons, exclusive, long := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if !slices.Contains(c.prepared, p.Claim.UID) {
				continue
			}
			if d.Sharing.Strategy == v1beta1.StrategyMPS {
				uuid := d.UUID
				if d.Kind == gpu.KindMIG {
					uuid = d.Partition.UUID
				}
				daemons[d.Name] = uuid
				exclusive[d.PCIAddress] = exclusive[d.PCIAddress] || d.Kind == gpu.KindGPU
				daemon, own := c.Sim.daemons[d.Name].MemoryLimit, d.Sharing.MemoryLimit
				if d.Partial() && (own == nil || *own > d.Share.MemoryBytes) {
					c.problem("claim %s has %d bytes of %s, and its limit is %v", p.Claim, d.Share.MemoryBytes, d.Name,
						own)
				}
				if daemon != nil && (own == nil || *daemon < *own) {
					c.problem("the daemon of %s limits to %d, and claim %s has %v", d.Name, *daemon, p.Claim, own)
				}
			}
			if d.Sharing.Timed && d.Sharing.Interval == 3 {
				long[d.PCIAddress] = true
			}
		}
	}
	for name, d := range c.Sim.daemons {
		if daemons[name] != d.UUID {
			c.problem("a daemon of %s serves %s, wanted for %q", name, d.UUID, daemons[name])
		}
		delete(daemons, name)
	}
	for name := range daemons {
		c.problem("no daemon serves %s", name)
	}
	recorded := func(setting string, g engine.GPU) bool {
		_, err := os.Stat(filepath.Join(c.StateDir, "gpus", setting, g.Address+".json"))
		return err == nil
	}
	// Without a claim that needs it, the record of a setting explains it.
	for _, g := range c.Sim.State().GPUs {
		is := nvml.ComputeMode(g.ComputeMode) == nvml.ComputeExclusiveProcess
		if is != exclusive[g.Address] && (!is || !recorded(mps.Setting, g)) {
			c.problem("the compute mode of %s is %d, with MPS: %v", g.Address, g.ComputeMode, exclusive[g.Address])
		}
		is = g.TimeSlice == 3
		if is != long[g.Address] && (!is || !recorded(timeslice.Setting, g)) {
			c.problem("the time slice of %s is %d, wanted long: %v", g.Address, g.TimeSlice, long[g.Address])
		}
	}
}

// CheckRestored restores the settings of GPUs, and fails the test unless none of a claim without record remains.
func (e *Env) CheckRestored(p *Process) {
	e.T.Helper()
	if e.Sim == nil {
		return
	}
	e.Must(errors.Join(p.Settings.Reconcile(context.Background())...))
	for _, g := range e.Sim.State().GPUs {
		if !g.Lost && (nvml.ComputeMode(g.ComputeMode) == nvml.ComputeExclusiveProcess || g.TimeSlice == 3) {
			e.T.Fatalf("without claims %s has the compute mode %d and the time slice %d", g.Address, g.ComputeMode,
				g.TimeSlice)
		}
	}
}
