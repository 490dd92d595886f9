// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gpu-dra-driver/internal/host"
)

// An open directory that was removed is seen through /proc/self/fd as a container sees a mount of it.
func TestUnlinkedSeesADirectoryThatOutlivesItsName(t *testing.T) {
	h := host.New(host.Options{})
	dir := filepath.Join(t.TempDir(), "cdi")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := fmt.Sprintf("/proc/self/fd/%d/.", f.Fd())
	if gone, err := h.Unlinked(seen); gone || err != nil {
		t.Errorf("Unlinked of a directory that is there: %v, %v", gone, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if gone, err := h.Unlinked(seen); !gone || err != nil {
		t.Errorf("Unlinked of a deleted directory: %v, %v", gone, err)
	}
	if gone, err := h.Unlinked(dir); gone || err != nil {
		t.Errorf("Unlinked of a name that is free: %v, %v; the directory can be made again", gone, err)
	}
}
