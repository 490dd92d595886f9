// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/internal/recordedtest"
)

var (
	limitCommand   = regexp.MustCompile(`^mps\.commands\.set_(?:default_)?device_pinned_mem_limit (?:SERVER )?0 (\d+)M\n`)
	percentCommand = regexp.MustCompile(`^mps\.commands\.set_(?:default_)?active_thread_percentage (?:SERVER )?(\d+)\n`)
)

// printed returns what the MPS program printed for the last command.
func printed(fact any) string {
	text, _ := fact.(string)
	_, text, _ = strings.Cut(text, " | ")
	return text[strings.LastIndex(text, "\n")+1:]
}

// TestRecorded_Limits_AreReadBack: a limit that was set is recognised in the daemon's answer, and no other one is.
func TestRecorded_Limits_AreReadBack(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		limits := 0
		for name, fact := range r.Facts(t) {
			m := limitCommand.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			mib, err := strconv.ParseUint(m[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			limits++
			answer := printed(fact)
			if mib == 0 {
				if hasNumber(answer) {
					t.Errorf("after a limit of 0 the daemon prints %q, which counts as a limit", answer)
				}
				continue
			}
			if !isSize(answer, mib) || isSize(answer, mib/2) || isSize(answer, 2*mib) || !hasNumber(answer) {
				t.Errorf("a limit of %d MiB is printed as %q, and not recognised as only that", mib, answer)
			}
		}
		if limits < 5 {
			t.Errorf("%d recorded limits, want at least 5", limits)
		}
		// Without a limit, and for servers that are gone.
		if answer := printed(r.Facts(t)["mps.commands.get_default_device_pinned_mem_limit 0"]); hasNumber(answer) {
			t.Errorf("a daemon without a limit prints %q, which counts as a limit", answer)
		}
		if answer := printed(r.Facts(t)["mps.commands.get_device_pinned_mem_limit 1 0"]); sizeForm.MatchString(answer) || isSize(answer, 1) {
			t.Errorf("a server that is gone has the limit %q", answer)
		}
		// A limit as large as no GPU replaces an earlier one.
		if answer := printed(r.Facts(t)["mps.commands.set_default_device_pinned_mem_limit 0 1048576M\nget_default_device_pinned_mem_limit 0"]); !isSize(answer, noLimit) {
			t.Errorf("no limit is printed as %q", answer)
		}
	})
}

func TestRecorded_Percentages_AreReadBack(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		percentages := 0
		for name, fact := range r.Facts(t) {
			m := percentCommand.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			set, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			percentages++
			got, err := strconv.ParseFloat(printed(fact), 64)
			if same := math.Abs(got-float64(set)) < 1; err != nil || same != (set <= 100) {
				t.Errorf("%d %% is printed as %q, %v", set, printed(fact), err)
			}
		}
		if percentages < 3 {
			t.Errorf("%d recorded percentages, want at least 3", percentages)
		}
		if _, err := strconv.ParseFloat(printed(r.Facts(t)["mps.commands.get_active_thread_percentage 1"]), 64); err == nil {
			t.Error("a server that is gone has a percentage")
		}
	})
}

// TestRecorded_Servers_AreListed: the list has PIDs only.
func TestRecorded_Servers_AreListed(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		list := printed(r.Facts(t)["mps.commands.get_server_list"])
		if pid, err := strconv.Atoi(list); err != nil || pid <= 0 || list != r.Fact(t, "mps.commands.server-list") {
			t.Errorf("the list of one server is %q, %v", list, err)
		}
	})
}
