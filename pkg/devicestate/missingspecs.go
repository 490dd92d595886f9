// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"errors"
	"io/fs"
	"slices"

	"gpu-dra-driver/pkg/record"
)

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
