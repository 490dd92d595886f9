// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// State returns a hash of everything that a new process finds on the machine: files, simulated GPUs and daemons, and
// claims. Two machines of one scenario with the same State continue equally.
func (e *Env) State() string {
	e.T.Helper()
	h := sha256.New()
	e.Must(filepath.WalkDir(e.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			fmt.Fprintf(h, "%s\n", path[len(e.Dir):])
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path[len(e.Dir):], len(data), bytes.ReplaceAll(data, []byte(e.Dir), nil))
		return err
	}))
	memory := []any{e.Claims, e.Snapshot, e.noExternal, fmt.Sprint(e.EditsErr)}
	if e.Sim != nil {
		memory = append(memory, e.Sim.State(), e.Sim.daemons, e.Sim.External, e.Sim.ExternalModes)
	}
	e.Must(json.NewEncoder(h).Encode(memory))
	return string(h.Sum(nil))
}
