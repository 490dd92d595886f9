// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/record"
)

// Check looks for what must never be, between calls: nothing leaked, nothing lost, no device held twice. It reads only.
func (e *Engine) Check() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	boot, err := e.o.Host.BootID()
	if err != nil {
		return err
	}
	records, unreadable, err := e.records.All()
	if err != nil {
		return err
	}
	for _, uid := range unreadable {
		fault("the record of claim UID %s is unreadable", uid)
	}
	known := map[string]bool{}
	for i, r := range records {
		c := r.Plan.Claim
		known[c.UID] = true
		if r.State != record.Committed {
			fault("claim %s is %s", c, r.State)
			continue
		}
		if r.BootID == boot {
			errs = append(errs, e.checkSpec(r))
		}
		for _, address := range r.Plan.HeldGPUs() {
			totals := newShareTotals(r.Plan, address)
			for j, other := range records {
				if j == i {
					continue
				}
				if d, why := totals.add(other.Plan); why != "" {
					fault("%s on GPU %s: %s", d, address, why)
				}
				if d, taken := r.Plan.Conflict(other.Plan, address); taken && j < i {
					fault("%s on GPU %s is held by claim %s and claim %s", d.Name, address, other.Plan.Claim, c)
				}
			}
		}
	}
	uids, specs, err := e.uids()
	if err != nil {
		return err
	}
	for _, uid := range specs {
		if !known[uid] {
			fault("claim UID %s has a CDI spec and no record", uid)
		}
	}
	for _, uid := range uids {
		if !known[uid] {
			fault("claim UID %s has an unfinished record", uid)
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) checkSpec(r record.Record) error {
	c := r.Plan.Claim
	data, err := e.o.Specs.Read(c.UID)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("claim %s is committed and has no CDI spec", c)
	}
	if err != nil {
		return err
	}
	for i, d := range r.Plan.Devices {
		if d.TopologyEnv.NCCLTopology != "" {
			switch file, err := e.o.Specs.ReadTopology(c.UID); {
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("claim %s is committed and has no topology file for NCCL", c)
			case err != nil:
				return err
			case string(file) != d.TopologyEnv.NCCLTopology:
				return fmt.Errorf("the topology file for NCCL of claim %s is not what its record says", c)
			}
		}
		if !strings.Contains(string(data), cdi.DeviceName(r.Plan, i)) {
			return fmt.Errorf("the CDI spec of claim %s lacks device %s", c, r.Plan.Devices[i].Name)
		}
	}
	return nil
}

// MissingSpecs says whether a prepared claim lacks its CDI spec, for Recover to write it again: a container that restarts
// needs it and no Prepare comes before that. It costs two directory listings where none is missing.
// store.ErrUnlinked means that only a new process, with new mounts, can.
func (e *Engine) MissingSpecs() (bool, error) {
	if err := e.o.Specs.Usable(); err != nil {
		return false, err
	}
	uids, specs, err := e.uids()
	if err != nil {
		return false, err
	}
	for _, uid := range uids {
		if slices.Contains(specs, uid) {
			continue
		}
		r, err := e.records.Get(uid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && r.State != record.Committed {
			continue // In work, or gone meanwhile.
		}
		if err != nil {
			return false, err
		}
		boot, err := e.o.Host.BootID()
		if err != nil || r.BootID == boot {
			return err == nil, err
		}
	}
	return false, nil
}
