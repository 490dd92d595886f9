// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/internal/recordedtest"
	"gpu-dra-driver/pkg/gpu"
)

// TestRecorded_Messages_AreDecoded: the kernel's message and NVML's event have one XID, and the GPU of nvidia-smi.
func TestRecorded_Messages_AreDecoded(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		address, err := gpu.CanonicalAddress(r.SMI(t, "Bus Id"))
		if err != nil {
			t.Fatal(err)
		}
		event := regexp.MustCompile(`XID:(\d+)`).FindStringSubmatch(r.Fact(t, "xid.event"))
		if event == nil {
			t.Fatalf("no XID in the event %q", r.Fact(t, "xid.event"))
		}
		code, err := strconv.ParseUint(event[1], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		const head = "4,1,1,-;"
		for line := range strings.Lines(r.Text(t, "kernel-log-xid.txt")) {
			m, ok := decode(head + strings.TrimSuffix(line, "\n"))
			if want := (XID{address, code}); !ok || m.xid() != want {
				t.Errorf("%q has %+v (%v), want %+v", line, m.xid(), ok, want)
			}
		}
		loads := 0
		for line := range strings.Lines(r.Text(t, "kernel-log-driver.txt")) {
			_, text, _ := strings.Cut(line, "] ") // After dmesg's time.
			m, ok := decode(head + strings.TrimSuffix(text, "\n"))
			if !ok || m.xid() != (XID{}) {
				t.Errorf("%q has %+v (%v), want no XID", line, m.xid(), ok)
			}
			if m.loads() {
				loads++
			}
		}
		if loads != 1 {
			t.Errorf("the driver was loaded %d times, want once", loads)
		}
	})
}
