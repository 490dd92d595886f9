// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

// Records gives access to an engine's files.
type Records struct {
	host    *host.Host
	records *record.Store
	specs   *store.Store
}

// OpenRecords opens the records in an engine's directory. The host must run operations without a fault hook.
func OpenRecords(h *host.Host, dir string, specs *store.Store) (Records, error) {
	records, err := record.Open(h, filepath.Join(dir, "records"))
	return Records{h, records, specs}, err
}

// Check returns an error for leaked effects, lost effects and doubly held devices. No call may be in progress. It only
// reads.
func (s Records) Check() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	boot, err := s.host.BootID()
	if err != nil {
		return err
	}
	records, unreadable, err := s.records.All()
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
			errs = append(errs, s.checkSpec(r))
		}
		others := slices.Delete(slices.Clone(records), i, i+1)
		errs = append(errs, checkShares(r.Plan, others)...)
		for _, address := range r.Plan.HeldGPUs() {
			for _, other := range records[:i] {
				if d, taken := r.Plan.Conflict(other.Plan, address); taken {
					fault("%s on GPU %s is held by claim %s and claim %s", d.Name, address, other.Plan.Claim, c)
				}
			}
		}
	}
	uids, err := s.records.UIDs()
	if err != nil {
		return err
	}
	specs, err := s.specs.UIDs()
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

// checkShares adds up the shares of each device.
func checkShares(p plan.Plan, others []record.Record) (errs []error) {
	for _, d := range p.Devices {
		if !d.Partial() || d.Admin {
			continue
		}
		var use plan.Use
		for _, own := range p.Devices {
			if own.Name == d.Name {
				use.Add(own.Share)
			}
		}
		for _, other := range others {
			for _, o := range other.Plan.Devices {
				if !d.Shares(o) {
					continue
				}
				if why := d.Disagrees(o); why != "" {
					errs = append(errs, fmt.Errorf("%s: claim %s %s", d.Name, other.Plan.Claim, why))
				}
				use.Add(o.Share)
			}
		}
		if excess := use.Excess(d.Share); excess != "" {
			errs = append(errs, fmt.Errorf("%s: %s", d.Name, excess))
		}
	}
	return errs
}

func (s Records) checkSpec(r record.Record) error {
	c := r.Plan.Claim
	data, err := s.specs.Read(c.UID)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("claim %s is committed and has no CDI spec", c)
	}
	if err != nil {
		return err
	}
	for i, d := range r.Plan.Devices {
		if d.TopologyEnv.NCCLTopology != "" {
			switch file, err := os.ReadFile(s.specs.MountedPath(c.UID, store.Topology)); {
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
	files, err := cdi.MetadataFiles(Driver, r.Plan)
	if err != nil {
		return err
	}
	for i, f := range files {
		file, err := os.ReadFile(s.specs.MountedPath(c.UID, store.Metadata(i)))
		if err != nil {
			return fmt.Errorf("the metadata of request %s of claim %s: %w", f.Request, c, err)
		}
		if !bytes.Equal(file, f.Data) {
			return fmt.Errorf("the metadata of request %s of claim %s is not what its record says", f.Request, c)
		}
		if !strings.Contains(string(data), strconv.Quote(s.specs.MountedPath(c.UID, store.Metadata(i)))) {
			return fmt.Errorf("the CDI spec of claim %s does not mount the metadata of request %s", c, f.Request)
		}
	}
	return nil
}
