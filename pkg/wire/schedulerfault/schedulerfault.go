// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedulerfault knows the patches of Kubernetes whose scheduler allocates devices wrongly, and the features of
// slices that the driver leaves out for them.
//
// The faults are the scheduler's, but only the API server reports its version. So that version stands in for the
// scheduler's, unless a setting names it. test/allocators compares this table with the allocator of every patch.
package schedulerfault

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Features are features of slices: shared counters (MIG partitions and NVLink groups need them) and devices for
// several claims (shares and monitor devices).
type Features struct{ Counters, Shares bool }

var (
	counters = Features{Counters: true}
	shares   = Features{Shares: true}
	all      = Features{Counters: true, Shares: true}
)

// Without returns f without the features of g.
func (f Features) Without(g Features) Features {
	return Features{Counters: f.Counters && !g.Counters, Shares: f.Shares && !g.Shares}
}

// Or returns the features of both.
func (f Features) Or(g Features) Features {
	return Features{Counters: f.Counters || g.Counters, Shares: f.Shares || g.Shares}
}

func (f Features) within(g Features) bool { return f.Without(g) == Features{} }

// String names the devices that depend on the features.
func (f Features) String() string {
	switch f {
	case all:
		return "partitions, NVLink groups, shares and monitor devices"
	case counters:
		return "partitions and NVLink groups"
	case shares:
		return "shares and monitor devices"
	}
	return "nothing"
}

// Fault is a fault of the scheduler in the patches of a minor version before FixedIn.
type Fault struct {
	// Name identifies the fault.
	Name string
	// Minor is the minor version, of Kubernetes 1.
	Minor int
	// FixedIn is the first patch without the fault. 0: no patch of the minor version is without it.
	FixedIn int
	// Needs are the features of slices without which the fault does no harm.
	Needs Features
	// Without are the features that the driver leaves out because of the fault. None: the driver only reports it.
	Without Features
	// Text says what the scheduler does wrong.
	Text string
}

// CopiesCounters reports whether the scheduler copies the counters of all nodes for each pool with counters, so that a
// pod costs it nodes times nodes with counters. Releases before 1.36 were not measured.
func (v Version) CopiesCounters() bool { return v.Minor == 36 }

// Faults returns all known faults, oldest version first.
func Faults() []Fault { return slices.Clone(faults) }

// Versions returns the affected versions, such as "1.36.0 to 1.36.1".
func (f Fault) Versions() string {
	switch {
	case f.Minor == 0:
		return "unknown"
	case f.FixedIn == 0:
		return fmt.Sprintf("1.%d", f.Minor)
	case f.FixedIn == 1:
		return fmt.Sprintf("1.%d.0", f.Minor)
	}
	return fmt.Sprintf("1.%d.0 to 1.%d.%d", f.Minor, f.Minor, f.FixedIn-1)
}

// Upgrade returns the oldest version to upgrade to, such as "1.36.2".
func (f Fault) Upgrade() string {
	if f.FixedIn == 0 {
		next := Version{Minor: f.Minor + 1}
		for next.has(f.Name) {
			next.Patch++
		}
		return next.String()
	}
	return Version{Minor: f.Minor, Patch: f.FixedIn}.String()
}

// Version is a release of Kubernetes 1. The zero Version is unknown.
type Version struct{ Minor, Patch int }

// Allocator is the version of Kubernetes whose allocator this module links. Answers about claims are judged by it.
var Allocator = Version{Minor: 37, Patch: 2}

// JudgedBy says by which versions an answer for a cluster is judged. The zero Version is unknown.
func JudgedBy(server Version) string {
	if server == (Version{}) {
		return fmt.Sprintf("the allocator of Kubernetes %s", Allocator)
	}
	return fmt.Sprintf("the allocator of Kubernetes %s, for an API server of %s", Allocator, server)
}

func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("1.%d.%d", v.Minor, v.Patch)
}

// Compare orders versions by age, oldest first. The unknown version precedes the others.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch))
}

func (v Version) has(name string) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.Name == name && f.of(v) })
}

func (f Fault) of(v Version) bool {
	return f.Minor == v.Minor && (f.FixedIn == 0 || v.Patch < f.FixedIn)
}

var (
	form       = regexp.MustCompile(`^v?1\.([0-9]{1,3})\.([0-9]{1,3})([-+].*)?$`)
	prerelease = regexp.MustCompile(`^-(alpha|beta|rc)[.0-9]`)
)

// Parse reads a version such as v1.36.1, v1.36.1-gke.100 or v1.36.1+k3s1. A vendor's version has the faults of the
// release that it names. A prerelease has those of the release before it: v1.36.2-rc.0 counts as 1.36.1, and
// v1.37.0-alpha.1 as 1.36.0.
func Parse(text string) (Version, error) {
	m := form.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return Version{}, fmt.Errorf("%.40q is not a version of Kubernetes such as v1.36.3", text)
	}
	minor, _ := strconv.Atoi(m[1]) // At most three digits.
	patch, _ := strconv.Atoi(m[2])
	v := Version{Minor: minor, Patch: patch}
	if prerelease.MatchString(m[3]) {
		if v.Patch--; v.Patch < 0 {
			v = Version{Minor: max(0, v.Minor-1)}
		}
	}
	if v == (Version{}) {
		return Version{}, fmt.Errorf("%.40q is not a release of Kubernetes", text)
	}
	return v, nil
}

// Of returns the faults of a scheduler over slices with the features.
func Of(v Version, slicesHave Features) (out []Fault) {
	if v == (Version{}) {
		return unknown
	}
	for _, f := range faults {
		if f.of(v) && f.Needs.within(slicesHave) {
			out = append(out, f)
		}
	}
	return out
}

// Without returns the features that the driver leaves out because of faults.
func Without(of []Fault) (out Features) {
	for _, f := range of {
		out = out.Or(f.Without)
	}
	return out
}

// Consequence says what the driver does about the fault.
func (f Fault) Consequence() string {
	if f.Without == (Features{}) {
		return "reported only"
	}
	return "no " + strings.ReplaceAll(f.Without.String(), " and ", " or ")
}

// Remedy says how to end a fault's effects.
func (f Fault) Remedy() string {
	const setting = "if only the scheduler has another version, set the chart value schedulerVersion " +
		"(--scheduler-version) to it"
	if f.Minor == 0 {
		return "let the plugin read /version of the API server, or set the chart value schedulerVersion " +
			"(--scheduler-version)"
	}
	return "upgrade Kubernetes to " + f.Upgrade() + " or newer; " + setting
}
