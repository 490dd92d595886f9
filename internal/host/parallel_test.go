// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"gpu-dra-driver/internal/host"
)

func TestParallel_Production_RunsAtOnceAndReturnsAllErrors(t *testing.T) {
	var all sync.WaitGroup
	all.Add(2)
	err := host.Parallel(host.New(host.Options{}), []error{errors.New("a"), errors.New("b")}, func(err error) error {
		all.Done()
		all.Wait() // Each call waits for the other.
		return err
	})
	if err == nil || err.Error() != "a\nb" {
		t.Error(err)
	}
}

func TestParallel_WorkPanics_CompletesOthers(t *testing.T) {
	for _, hook := range []host.FaultHook{nil, func(_ host.Operation, do func() error) error { return do() }} {
		var ended sync.Map
		err := host.Parallel(host.New(host.Options{FaultHook: hook}), []int{1, 2, 0}, func(i int) error {
			_ = 1 / i
			ended.Store(i, true)
			return nil
		})
		for i := range 2 {
			if _, ok := ended.Load(i + 1); !ok || !errors.Is(err, host.ErrPanic) {
				t.Error(i+1, ok, err)
			}
		}
	}
}

func TestParallel_FaultHook_RunsInOrderUpToTheFirstError(t *testing.T) {
	h := host.New(host.Options{FaultHook: func(_ host.Operation, do func() error) error { return do() }})
	var called []int
	err := host.Parallel(h, []int{1, 2, 3}, func(i int) error {
		called = append(called, i)
		if i == 2 {
			return errors.ErrUnsupported
		}
		return nil
	})
	if !errors.Is(err, errors.ErrUnsupported) || !slices.Equal(called, []int{1, 2}) {
		t.Errorf("%v, called %v", err, called)
	}
}
