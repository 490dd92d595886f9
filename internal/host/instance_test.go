// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestNewest_InstancesComeAndGo_YoungestOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "instances")
	// Content from an earlier version or from a person is ignored.
	if err := os.WriteFile(path, []byte("99999999999999\nx"), 0o600); err != nil {
		t.Fatal(err)
	}
	enlist := func() (*Host, *Instance) {
		h := New(Options{})
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		i, err := h.Enlist(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		return h, i
	}
	newest := func(want bool, i *Instance) {
		t.Helper()
		if got, err := i.Newest(); err != nil || got != want {
			t.Errorf("newest: %v, %v, want %v", got, err, want)
		}
	}
	h1, first := enlist()
	newest(true, first)
	h2, second := enlist()
	h3, third := enlist()
	newest(false, first)
	newest(false, second)
	newest(true, third)
	h2.Close()
	newest(true, third)
	newest(false, first)
	h3.Close()
	newest(true, first)
	h4, fourth := enlist()
	newest(false, first)
	h1.Close()
	newest(true, fourth)
	h5, fifth := enlist()
	newest(false, fourth)
	h4.Close()
	newest(true, fifth)
	cancelled, cancel := context.WithCancel(background)
	cancel()
	h5.Close()
	if _, err := fifth.Newest(); err == nil {
		t.Error("an ended instance got an answer")
	}
	if _, err := New(Options{}).Enlist(cancelled, path); err == nil {
		t.Error("a caller who had gone was enlisted")
	}
}
