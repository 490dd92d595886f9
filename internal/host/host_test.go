// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
)

func TestBootID_MissingEmptyAndSet_ReturnsTrimmedOrError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	h := host.New(host.Options{BootIDFile: file})
	if _, err := h.BootID(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for text, want := range map[string]string{"": "", " \n": "", "abc\n": "abc"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := h.BootID(); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if id, err := host.New(host.Options{}).BootID(); err != nil || len(id) != 36 {
		t.Errorf("this machine's: %q, %v", id, err)
	}
}

func TestNow_DefaultAndInjectedClock(t *testing.T) {
	if got := host.New(host.Options{}).Now(); time.Since(got) > time.Minute {
		t.Error(got)
	}
	want := time.Unix(7, 0)
	if got := host.New(host.Options{Now: func() time.Time { return want }}).Now(); got != want {
		t.Error(got)
	}
}

func TestNow_Machine_IsMonotonic(t *testing.T) {
	now := host.New(host.Options{}).Now()
	if now == now.Round(0) { //nolint:staticcheck // Equal ignores the monotonic reading.
		t.Error("a change of the clock changes differences")
	}
}
