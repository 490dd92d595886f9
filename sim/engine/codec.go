// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"gpu-dra-driver/sim/profiles"
)

// Encode returns the content of the state file.
func (s *State) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// Decode reads and validates a state file. An unknown field or another version is an error.
func Decode(b []byte) (*State, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	s := new(State)
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("state file: data after the state")
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	return s, nil
}

func (s *State) validate() error {
	if s.Version != Version {
		return fmt.Errorf("version %d, this build reads %d: make the machine again with gpusim down and gpusim up", s.Version, Version)
	}
	if err := s.Profile.Validate(); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if s.BootID == "" || strings.ContainsAny(s.BootID, "\n/") {
		return fmt.Errorf("bootID %q", s.BootID)
	}
	if len(s.GPUs) > profiles.MaxGPUs {
		return fmt.Errorf("%d GPUs, at most %d", len(s.GPUs), profiles.MaxGPUs)
	}
	minors, addresses := map[int]bool{}, map[string]bool{}
	for i, g := range s.GPUs {
		if _, err := profiles.ParseAddress(g.Address); err != nil || addresses[g.Address] {
			return fmt.Errorf("gpus[%d].address %q: bad or not unique", i, g.Address)
		}
		addresses[g.Address] = true
		if !strings.HasPrefix(g.UUID, "GPU-") || len(g.UUID) != 40 || strings.ContainsAny(g.UUID, "\n/\x00") {
			return fmt.Errorf("gpus[%d].uuid %q", i, g.UUID)
		}
		if !g.OffBus && (g.Minor < 0 || g.Minor > 253 || minors[g.Minor]) {
			return fmt.Errorf("gpus[%d].minor %d: out of range or not unique", i, g.Minor)
		}
		minors[g.Minor] = true
		for _, w := range g.Workloads {
			if w.Load < 0 || w.Load > 100 {
				return fmt.Errorf("gpus[%d].workloads: load %d of %q", i, w.Load, w.Owner)
			}
		}
		if err := s.validateMIG(&s.GPUs[i]); err != nil {
			return fmt.Errorf("gpus[%d]: %w", i, err)
		}
	}
	return nil
}

// Clone returns a deep copy.
func (s *State) Clone() *State {
	c := *s
	c.Raised = nil
	c.AbsentSymbols = append([]string(nil), s.AbsentSymbols...)
	c.Faults = append([]Fault(nil), s.Faults...)
	c.GPUs = append([]GPU(nil), s.GPUs...)
	for i := range c.GPUs {
		c.GPUs[i].Processes = append([]Process(nil), s.GPUs[i].Processes...)
		c.GPUs[i].Workloads = append([]Workload(nil), s.GPUs[i].Workloads...)
		c.GPUs[i].LinksDown = append([]int(nil), s.GPUs[i].LinksDown...)
		c.GPUs[i].LinkErrors = append([]uint64(nil), s.GPUs[i].LinkErrors...)
		c.GPUs[i].Monitors = append([]string(nil), s.GPUs[i].Monitors...)
		c.GPUs[i].Instances = append([]Instance(nil), s.GPUs[i].Instances...)
		for k := range c.GPUs[i].Instances {
			c.GPUs[i].Instances[k].Computes = append([]Compute(nil), c.GPUs[i].Instances[k].Computes...)
		}
	}
	return &c
}
