// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"errors"
	"fmt"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
)

// kind is what happens to an effect.
type kind string

const (
	fails      kind = "fails"
	timesOut   kind = "is done and answered with a timeout"
	killBefore kind = "is died before"
	killAfter  kind = "is died after"
)

var (
	errInjected = errors.New("injected fault")
	errDead     = errors.New("this process is dead")
)

// death ends a process where it stands.
type death struct{}

// fault counts the effects of a process, on the machine and through NVML alike, and makes the at-th fail or the last. A
// dead process has no more effects, whatever its deferred code tries.
type fault struct {
	armed bool
	at    int // -1 for none
	kind  kind
	dead  bool
	seen  []string
}

func (f *fault) before(label string) error {
	if f.dead {
		return errDead
	}
	if !f.armed {
		return nil
	}
	f.seen = append(f.seen, label)
	if len(f.seen)-1 != f.at {
		return nil
	}
	switch f.kind {
	case fails:
		return errInjected
	case killBefore:
		f.dead = true
		panic(death{})
	}
	return nil
}

func (f *fault) after() bool {
	if !f.armed || len(f.seen)-1 != f.at {
		return false
	}
	if f.kind == killAfter {
		f.dead = true
		panic(death{})
	}
	return f.kind == timesOut
}

// Before implements host.Tap.
func (f *fault) Before(e host.Effect) error { return f.before(e.String()) }

// After implements host.Tap.
func (f *fault) After(host.Effect) { f.after() }

const viaNVML = "nvml."

func (f *fault) nvml(label string, do func() error) error {
	if err := f.before(viaNVML + label); err != nil {
		if errors.Is(err, errInjected) {
			return fmt.Errorf("%s: %w", label, nvml.Unknown)
		}
		return err
	}
	err := do()
	if f.after() && err == nil {
		return fmt.Errorf("%s: %w", label, nvml.Timeout)
	}
	return err
}

// attempt runs do and says whether the process died in it.
func attempt(do func() error) (died bool, err error) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil:
		case death:
			died = true
		default:
			panic(r)
		}
	}()
	return false, do()
}
