// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package computepolicy

import (
	"fmt"
	"strings"
	"testing"

	"gpu-dra-driver/internal/recordedtest"
)

// TestRecorded_Table_IsRead: no recording changes a time slice, so each table has the default.
func TestRecorded_Table_IsRead(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		table := r.Text(t, "nvidia-smi-compute-policy-l.txt")
		for n, name := range names {
			other := strings.Replace(table, "Default", strings.ToUpper(name[:1])+name[1:], 1)
			if got, err := parse(other); got != n || err != nil {
				t.Errorf("time slice %d is read as %d, %v, in\n%s", n, got, err, other)
			}
		}
		// Other texts of the program have no row.
		for _, file := range []string{"compute-policy-help", "compute-policy-refused", "mig-lgi", "L", "q", "topo-m"} {
			if file = "nvidia-smi-" + file + ".txt"; !r.Has(file) {
				continue
			}
			if n, err := parse(r.Text(t, file)); err == nil {
				t.Errorf("%s has the time slice %d", file, n)
			}
		}
	})
}

// TestRecorded_Help_HasTheNumbers: the option takes the numbers of names, in this form.
func TestRecorded_Help_HasTheNumbers(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		help := r.Text(t, "nvidia-smi-compute-policy-help.txt")
		for n, name := range names {
			if want := fmt.Sprintf("%d=%s", n, strings.ToUpper(name)); !strings.Contains(help, want) {
				t.Errorf("nvidia-smi compute-policy --help has no %s:\n%s", want, help)
			}
		}
		for _, option := range []string{"-i", "-l", "--set-timeslice"} {
			if !strings.Contains(help, option) {
				t.Errorf("nvidia-smi compute-policy --help has no %s:\n%s", option, help)
			}
		}
	})
}
