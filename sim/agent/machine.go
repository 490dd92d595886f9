// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// Want is the machine that a node is to have. The zero value is none.
type Want struct {
	Board string `json:"board,omitempty"`
	// GPUs is the number of filled slots; 0 fills all.
	GPUs int `json:"gpus,omitempty"`
	// DriverVersion is empty for the board's own.
	DriverVersion string `json:"driverVersion,omitempty"`
}

// Choose returns the machine for a node with these labels. Without labels it has the default.
func Choose(byDefault Want, labels map[string]string) (Want, error) {
	want := byDefault
	if board, ok := labels[label.Board]; ok && board != byDefault.Board {
		// The number of GPUs and the driver are of the default's board.
		want = Want{Board: board}
	}
	if want.Board == "" || want.Board == label.None {
		return Want{}, nil
	}
	profile, err := profiles.Load(want.Board)
	if err != nil {
		return Want{}, fmt.Errorf("no board %q: the label %s of the node, or the value board of the chart, must be one of %s, or %s",
			want.Board, label.Board, strings.Join(profiles.Names(), ", "), label.None)
	}
	if text, ok := labels[label.GPUs]; ok {
		if want.GPUs, err = strconv.Atoi(text); err != nil || want.GPUs < 1 {
			return Want{}, fmt.Errorf("the label %s of the node is %q: give a number from 1 to %d", label.GPUs, text, len(profile.Slots))
		}
	}
	if want.GPUs > len(profile.Slots) {
		return Want{}, fmt.Errorf("%d GPUs are too many: the board %s has %d; correct the label %s of the node, or the value gpus of the chart",
			want.GPUs, want.Board, len(profile.Slots), label.GPUs)
	}
	return want, nil
}

// Machine is the place of a node's machine, and its parts.
type Machine struct {
	Root string
	// Seed varies UUIDs and serial numbers: the node's name.
	Seed string
	// Library and SMI are installed into the root.
	Library, SMI string
	// BootID is the one of the host.
	BootID string
}

// origin is the text that the agent stores in a machine.
type origin struct {
	Want   Want   `json:"want"`
	BootID string `json:"bootID"`
}

func (m Machine) options(want Want) (driverroot.Options, error) {
	text, err := json.Marshal(origin{want, m.BootID})
	return driverroot.Options{
		Profile: want.Board, GPUs: want.GPUs, DriverVersion: want.DriverVersion,
		Seed: m.Seed, Library: m.Library, SMI: m.SMI, Origin: string(text),
	}, err
}

// there reports whether the root holds a machine, or the rest of one.
func (m Machine) there() (bool, error) {
	_, err := os.Lstat(filepath.Join(m.Root, engine.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// made returns the origin of the machine in the root; nil of one that an interrupted change left without state.
func (m Machine) made() (*origin, error) {
	r, err := driverroot.Open(m.Root)
	if err != nil {
		return nil, err
	}
	s, err := r.State()
	switch {
	case errors.Is(err, engine.ErrNoMachine):
		return nil, nil
	case err != nil:
		return nil, err
	case s.Origin == "":
		return nil, fmt.Errorf("%s holds a machine that gpusim up made: remove it with gpusim down --root %s on the node, or choose another root",
			m.Root, m.Root)
	}
	o := new(origin)
	if err := json.Unmarshal([]byte(s.Origin), o); err != nil {
		return nil, fmt.Errorf("unreadable origin of the machine in %s: %w", m.Root, err)
	}
	return o, nil
}

// Apply makes, keeps, replaces or removes the machine, and returns its last step for the log; empty if the machine is as wanted.
// A machine boots with its host.
func (m Machine) Apply(want Want) (step string, err error) {
	there, err := m.there()
	if err != nil {
		return "", fmt.Errorf("looking for the machine in %s: %w", m.Root, err)
	}
	if want == (Want{}) {
		if !there {
			return "", nil
		}
		return "removed", m.Remove()
	}
	options, err := m.options(want)
	if err != nil {
		return "", err
	}
	if !there {
		if _, err := driverroot.Up(m.Root, options); err != nil {
			return "", fmt.Errorf("making %s in %s: %w", want.Board, m.Root, err)
		}
		return "made", nil
	}
	was, err := m.made()
	if err != nil {
		return "", err
	}
	if was == nil || was.Want != want {
		if _, err := driverroot.Replace(m.Root, options); err != nil {
			return "", fmt.Errorf("replacing the machine in %s by %s: %w", m.Root, want.Board, err)
		}
		return "replaced", nil
	}
	r, err := driverroot.Open(m.Root)
	if err == nil {
		err = r.Refresh(options)
	}
	if err != nil || was.BootID == m.BootID {
		return "", err
	}
	return "rebooted", r.Update(func(s *engine.State) error {
		s.Reboot()
		s.Origin = options.Origin
		return nil
	})
}

// Remove removes the machine that Apply made, if there is one. It keeps a directory that it did not create.
func (m Machine) Remove() error {
	there, err := m.there()
	if err != nil || !there {
		return err
	}
	if _, err := m.made(); err != nil {
		return err
	}
	return driverroot.Down(m.Root)
}

// Real reports whether a node's labels say that it has NVIDIA's hardware of its own.
func Real(labels map[string]string) bool {
	return labels[label.Present] == "" && labels[label.Hardware] == "true"
}
