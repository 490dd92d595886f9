// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package schedulerfault

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParse_ReleasesVendorsAndPrereleases_CountAs(t *testing.T) {
	for text, want := range map[string]string{
		"v1.36.1": "1.36.1", "1.36.1": "1.36.1", " v1.36.1\n": "1.36.1", "v1.36.12": "1.36.12",
		// A vendor's version names the release that it is built from.
		"v1.36.1-gke.100": "1.36.1", "v1.36.1+k3s1": "1.36.1", "v1.36.1-eks-3b4c5d6": "1.36.1", "v1.36.1+rke2r1": "1.36.1",
		"v1.36.1-dirty": "1.36.1", "v1.36.1-rancher1": "1.36.1", "v1.36.3-aliyun.1": "1.36.3", "v1.36.0+vmware.2": "1.36.0",
		// A prerelease precedes the mend.
		"v1.36.2-rc.0": "1.36.1", "v1.36.2-rc.0.14+5f6a7b8c": "1.36.1", "v1.36.2-rc1+k3s1": "1.36.1", "v1.36.0-beta.1": "1.35.0",
		"v1.37.0-alpha.3": "1.36.0", "v1.37.0-rc.1": "1.36.0",
	} {
		if v, err := Parse(text); err != nil || v.String() != want {
			t.Errorf("%q: %s, %v, want %s", text, v, err, want)
		}
	}
}

func TestParse_NoVersion_Error(t *testing.T) {
	for _, text := range []string{
		"", "v1", "v1.36", "36", "v1.36.x", "v0.0.0-master+$Format:%H$", "v2.0.0", "v1.36.1.2", "v1.-36.1", "v1.99999.0", "unknown", "v1.0.0-alpha.1",
		"v1.36.1 or newer", "latest", strings.Repeat("9", 1000),
	} {
		if v, err := Parse(text); err == nil || v != (Version{}) {
			t.Errorf("%q: %s, %v, want an error", text, v, err)
		} else if len(err.Error()) > 200 {
			t.Errorf("the error about a long text has %d characters", len(err.Error()))
		}
	}
}

func TestOf_Versions_LeaveOut(t *testing.T) {
	both, counters, shares := Features{true, true}, Features{Counters: true}, Features{Shares: true}
	for _, c := range []struct {
		version     string
		have, leave Features
		names       string
	}{
		{"1.34.9", both, shares, "first-device-only"},
		{"1.34.9", Features{}, Features{}, ""},
		{"1.35.5", both, both, "all-mode-panics shared-counters-ignored reservations-kept"},
		{"1.35.5", counters, counters, "all-mode-panics reservations-kept"},
		{"1.35.5", shares, Features{}, ""},
		{"1.35.6", both, shares, "shared-counters-ignored reservations-kept"},
		{"1.35.99", counters, Features{}, "reservations-kept"},
		{"1.36.0", both, both, "all-mode-panics shared-counters-ignored reservations-kept"},
		{"1.36.1", both, both, "all-mode-panics shared-counters-ignored reservations-kept"},
		{"1.36.1", shares, Features{}, ""},
		{"1.36.1", Features{}, Features{}, ""},
		{"1.36.2", both, Features{}, "reservations-kept"},
		{"1.36.3", both, Features{}, ""},
		{"1.37.0", both, Features{}, ""},
		{"1.99.0", both, Features{}, ""},
		{"", both, both, "unknown-version"},
		{"", Features{}, both, "unknown-version"},
	} {
		v, _ := Parse(c.version)
		got := Of(v, c.have)
		var names []string
		for _, f := range got {
			names = append(names, f.Name)
		}
		if Without(got) != c.leave || strings.Join(names, " ") != c.names {
			t.Errorf("%q with %v: %v without %v, want %s without %v", c.version, c.have, names, Without(got), c.names, c.leave)
		}
	}
}

// TestFaults_Rows_AreComplete checks the form of the table, and that each row names a version without the fault.
func TestFaults_Rows_AreComplete(t *testing.T) {
	seen := map[string]bool{}
	for i, f := range Faults() {
		key := fmt.Sprint(f.Minor, " ", f.Name)
		if seen[key] || f.Name == "" || f.Text == "" || f.Needs == (Features{}) || f.FixedIn < 0 || i > 0 && f.Minor < faults[i-1].Minor {
			t.Errorf("row %d: %+v", i, f)
		}
		seen[key] = true
		to, err := Parse(f.Upgrade())
		if err != nil || slices.ContainsFunc(Of(to, Features{true, true}), func(o Fault) bool { return o.Name == f.Name }) {
			t.Errorf("%s of %s: the upgrade to %s does not end it", f.Name, f.Versions(), f.Upgrade())
		}
	}
	for _, want := range []string{"1.36.0 to 1.36.1", "1.36.0 to 1.36.2", "1.34"} {
		if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Versions() == want }) {
			t.Errorf("no fault is of the versions %s", want)
		}
	}
	if to := faults[slices.IndexFunc(faults, func(f Fault) bool { return f.Minor == 35 && f.FixedIn == 0 })].Upgrade(); to != "1.36.2" {
		t.Errorf("the upgrade from 1.35 is to %s, want 1.36.2", to)
	}
}

// TestAllocator_GoMod_HasItsVersion reads the version of the module that is linked.
func TestAllocator_GoMod_HasItsVersion(t *testing.T) {
	text, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("k8s.io/dynamic-resource-allocation v0.%d.%d\n", Allocator.Minor, Allocator.Patch)
	if !strings.Contains(string(text), want) {
		t.Errorf("Allocator is %s, and go.mod lacks %s", Allocator, want)
	}
}
