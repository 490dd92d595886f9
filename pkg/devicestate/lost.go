// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"errors"
	"io/fs"

	"gpu-dra-driver/pkg/record"
)

// SpecsLost says whether a prepared claim lacks its CDI spec, for Recover to write it again: a container that restarts
// needs it and no Prepare comes before that. It costs two directory listings where all is well.
// store.ErrUnlinked means that only a new process, with new mounts, can.
func (e *Engine) SpecsLost() (bool, error) {
	if err := e.Specs.Usable(); err != nil {
		return false, err
	}
	specs, err := e.Specs.UIDs()
	if err != nil {
		return false, err
	}
	has := make(map[string]bool, len(specs))
	for _, uid := range specs {
		has[uid] = true
	}
	uids, err := e.records.UIDs()
	if err != nil {
		return false, err
	}
	for _, uid := range uids {
		if has[uid] {
			continue
		}
		r, err := e.records.Get(uid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && r.State != record.Committed {
			continue // In work, or gone meanwhile.
		}
		if err != nil {
			return false, err
		}
		boot, err := e.Host.BootID()
		if err != nil {
			return false, err
		}
		if r.BootID == boot {
			return true, nil
		}
	}
	return false, nil
}
