// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"errors"
	"sync"

	"gpu-dra-driver/internal/host"
)

// kind is what happens to an effect.
type kind string

const (
	fails      kind = "fails"
	killBefore kind = "killed before"
	killAfter  kind = "killed after"
)

var (
	errInjected = errors.New("injected fault")
	errDead     = errors.New("this process is dead")
)

// death ends a process where it stands.
type death struct{}

// tap counts the effects of a process once armed and makes the at-th fail or the last. A dead process has no more
// effects, whatever its deferred code tries.
type tap struct {
	mu     sync.Mutex
	armed  bool
	at     int // -1 for none
	kind   kind
	err    error // what a failing effect says
	dead   bool
	seen   []host.Effect
	shadow *shadow
}

func (t *tap) Before(e host.Effect) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		return errDead
	}
	if !t.armed {
		return nil
	}
	t.seen = append(t.seen, e)
	if len(t.seen)-1 == t.at {
		switch t.kind {
		case fails:
			if t.err != nil {
				return t.err
			}
			return errInjected
		case killBefore:
			t.dead = true
			panic(death{})
		}
	}
	return nil
}

func (t *tap) After(e host.Effect) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shadow != nil {
		t.shadow.after(e)
	}
	if t.armed && t.kind == killAfter && len(t.seen)-1 == t.at {
		t.dead = true
		panic(death{})
	}
}

// attempt runs f and says whether the process died in it.
func attempt(f func() error) (died bool, err error) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil:
		case death:
			died = true
		default:
			panic(r)
		}
	}()
	return false, f()
}
