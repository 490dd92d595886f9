// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"gpu-dra-driver/internal/host"
)

// items are items for keys; each item is a copy of its key.
func items(keys ...string) map[string]string {
	out := map[string]string{}
	for _, k := range keys {
		out[k] = k
	}
	return out
}

func TestEach_Items_RunAtOnceAndReturnTheirResults(t *testing.T) {
	var all sync.WaitGroup
	all.Add(2)
	var a host.Attempts[string]
	ended, running := a.Each(t.Context(), items("a", "b"), func(item *string) error {
		all.Done()
		all.Wait() // Each call waits for the other.
		*item += "!"
		return errors.New(*item)
	})
	got := map[string]string{}
	for _, e := range ended {
		got[e.Item] = e.Err.Error()
	}
	if !maps.Equal(got, items("a!", "b!")) || len(running) > 0 {
		t.Errorf("%v, running %v", got, running)
	}
	if again, _ := a.Results(); len(again) > 0 {
		t.Errorf("returned twice: %v", again)
	}
}

// TestEach_OneHangs_OthersHaveResults calls Each for two keys, one of which hangs, until the hanging one has ended.
func TestEach_OneHangs_OthersHaveResults(t *testing.T) {
	var a host.Attempts[string]
	hang, hung := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	begun := 0
	ended, running := a.Each(ctx, items("a", "b"), func(item *string) error {
		if *item == "a" {
			begun++
			close(hung)
			<-hang
			*item = "a, late"
			return nil
		}
		<-hung
		stop()
		return nil
	})
	if ctx.Err() == nil || !slices.Equal(running, []string{"a"}) {
		t.Fatalf("ended %v, running %v", ended, running)
	}
	// The other key's attempt may end after the context.
	for len(ended) == 0 {
		ended, running = a.Results()
	}
	if ended[0].Item != "b" || !slices.Equal(running, []string{"a"}) {
		t.Errorf("ended %v, running %v", ended, running)
	}
	ended, running = a.Each(t.Context(), items("a", "b"), func(item *string) error {
		if *item == "a" {
			t.Error("a second attempt of the key that hangs")
		}
		return nil
	})
	if len(ended) != 1 || ended[0].Item != "b" || !slices.Equal(running, []string{"a"}) {
		t.Errorf("second call: ended %v, running %v", ended, running)
	}
	close(hang)
	for ended = nil; len(ended) == 0; {
		ended, running = a.Results()
	}
	if ended[0].Item != "a, late" || len(running) > 0 || begun != 1 {
		t.Errorf("after the hang: ended %v, running %v, %d attempts", ended, running, begun)
	}
}

func TestEach_AttemptPanics_CompletesOthers(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		a := host.Attempts[int]{Ordered: ordered}
		ended, _ := a.Each(t.Context(), map[string]int{"a": 1, "b": 0, "c": 2}, func(i *int) error {
			_ = 1 / *i
			return nil
		})
		for _, e := range ended {
			if errors.Is(e.Err, host.ErrPanic) != (e.Item == 0) {
				t.Error(e)
			}
		}
		if len(ended) != 3 {
			t.Errorf("%d attempts ended", len(ended))
		}
	}
}

func TestEach_Ordered_RunsInOrderOfKeys(t *testing.T) {
	a := host.Attempts[string]{Ordered: true}
	var called []string
	a.Each(t.Context(), items("c", "a", "b"), func(item *string) error {
		called = append(called, *item)
		return nil
	})
	if !slices.Equal(called, []string{"a", "b", "c"}) {
		t.Error(called)
	}
}
