// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"cmp"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"gpu-dra-driver/internal/host"
)

// Kind is the kind of an injected fault.
type Kind string

// The kinds of faults.
const (
	Fail        Kind = "fails"
	LoseAnswer  Kind = "succeeds and is reported as failed"
	CrashBefore Kind = "crashes before"
	CrashAfter  Kind = "crashes after"
	DiskFull    Kind = "finds the disk full from"
)

// ErrInjected and ErrCrashed are the errors of operations. ErrCrashed is the error of every operation after the
// crash.
var (
	ErrInjected   = errors.New("injected fault")
	ErrAnswerLost = errors.New("injected loss of the answer")
	ErrCrashed    = errors.New("this process has crashed")
)

// Faults counts the operations of one process while it is armed, and injects faults into the chosen ones.
type Faults struct {
	mu             sync.Mutex
	armed, crashed bool
	kind           Kind
	err            error // the error of an operation that fails; ErrInjected if nil
	strikes        func(n int, o host.Operation) bool
	seen           []host.Operation
}

// Trace only counts operations.
func Trace() *Faults { return At(-1, Fail) }

// At injects a fault into the n-th operation, counted from 0; DiskFull into later ones too.
func At(n int, kind Kind) *Faults {
	f := &Faults{kind: kind, strikes: func(i int, _ host.Operation) bool { return i == n }}
	if kind == DiskFull {
		f.err, f.strikes = syscall.ENOSPC, func(i int, o host.Operation) bool { return i >= n && needsSpace(o) }
	}
	return f
}

// FailAll makes all operations for which match is true fail with err.
func FailAll(match func(host.Operation) bool, err error) *Faults {
	return &Faults{kind: Fail, err: err, strikes: func(_ int, o host.Operation) bool { return match(o) }}
}

// FullDisk makes all operations fail that need space on the disk.
func FullDisk(err error) *Faults { return FailAll(needsSpace, err) }

// needsSpace reports whether an operation fails on a full disk. A rename and a removal succeed.
func needsSpace(o host.Operation) bool {
	switch o.Call {
	case host.CallMkdir:
		_, err := os.Stat(o.Path)
		return err != nil
	case host.CallWrite, host.CallNote, host.CallLink:
		return true
	}
	return false
}

// Arm starts to count, from 0.
func (f *Faults) Arm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.seen = true, nil
}

// ArmAt starts to count, from 0, and injects a fault into the n-th operation.
func (f *Faults) ArmAt(n int, kind Kind) {
	f.Arm()
	f.kind, f.strikes = kind, At(n, kind).strikes
}

// Disarm stops the counting. A crashed process stays crashed.
func (f *Faults) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
}

// Seen returns the operations since Arm.
func (f *Faults) Seen() []host.Operation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// Do is the host.FaultHook.
func (f *Faults) Do(o host.Operation, do func() error) error {
	kind, err := f.next(o)
	if err != nil {
		return err
	}
	switch kind {
	case Fail, DiskFull:
		if o.Call == host.CallWrite && errors.Is(f.err, syscall.ENOSPC) {
			_ = os.WriteFile(o.Path, nil, 0o600) // The file can be created, but not filled.
		}
		return cmp.Or(f.err, ErrInjected)
	case CrashBefore:
		runtime.Goexit()
	}
	err = do()
	switch {
	case kind == CrashAfter:
		runtime.Goexit()
	case kind == LoseAnswer && err == nil:
		return ErrAnswerLost
	}
	return err
}

// next counts an operation and returns its kind of fault, "" for none.
func (f *Faults) next(o host.Operation) (Kind, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return "", ErrCrashed
	}
	if !f.armed {
		return "", nil
	}
	f.seen = append(f.seen, o)
	if !f.strikes(len(f.seen)-1, o) {
		return "", nil
	}
	f.crashed = f.kind == CrashBefore || f.kind == CrashAfter
	return f.kind, nil
}

// Run calls do and reports whether the process crashed in it. A crash ends do's goroutine: unlike a panic,
// no caller can recover it.
func Run(do func() error) (crashed bool, err error) {
	crashed = true
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = do()
		crashed = false
	}()
	<-ended
	return crashed, err
}
