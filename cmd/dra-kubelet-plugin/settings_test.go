// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/gpu"
)

func TestSharingSettings_FileChanges_AreFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	var reports []error
	changes := 0
	changed := notify.NewTrigger()
	s := newSharingSettings(flags.Config{SharingConfig: path, NodeName: "n", MPSDir: "/mps"},
		notifytest.Reporter(func(err error) { reports = append(reports, err) }), changed, nil)
	count := func() {
		select {
		case <-changed:
			changes++
		default:
		}
	}
	count()
	replicas := func() int { return s.Policy(gpu.GPU{}, "").Replicas }
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s.reload()
		count()
		s.reload()
		count()
	}
	// The file does not exist yet.
	s.reload()
	if replicas() != 0 || len(reports) != 0 {
		t.Fatalf("%d, %v", replicas(), reports)
	}
	write("sharing: {timeSlicing: {replicas: 4}}")
	if replicas() != 4 || changes != 2 {
		t.Errorf("%d replicas after %d changes", replicas(), changes)
	}
	write("sharing: {timeSlicing: {replicas: none}}")
	if replicas() != 4 || len(reports) != 1 || !strings.Contains(reports[0].Error(), "previous settings") {
		t.Errorf("after a bad file: %d replicas, %v", replicas(), reports)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.reload()
	if replicas() != 4 || len(reports) != 2 {
		t.Errorf("after the file went: %d replicas, %v", replicas(), reports)
	}
	write("sharing: {timeSlicing: {replicas: 2}}")
	if replicas() != 2 {
		t.Errorf("%d replicas", replicas())
	}
	if o, ok := s.Offer(gpu.GPU{MemoryBytes: 8 << 30}, "", ""); !ok || o.Memory != 4<<30 {
		t.Errorf("%+v", o)
	}
}

// TestSharingSettings_FirstReadFails_DevicesAreForOneClaim starts with a file that cannot be parsed, and one that cannot be
// read: the settings of an earlier process are not known.
func TestSharingSettings_FirstReadFails_DevicesAreForOneClaim(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(damaged, []byte("sharing: {timeSlicing: {replicas: none}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{damaged, t.TempDir()} {
		var reports []error
		s := newSharingSettings(flags.Config{SharingConfig: path, NodeName: "n"},
			notifytest.Reporter(func(err error) { reports = append(reports, err) }), notify.NewTrigger(), nil)
		if got := s.Policy(gpu.GPU{}, "").Replicas; got != 0 || len(reports) != 1 || !strings.Contains(reports[0].Error(), path) || !strings.Contains(reports[0].Error(), "each device is for one claim") {
			t.Errorf("%s: %d replicas, %v", path, got, reports)
		}
	}
}
