// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !noschedulerfault

package schedulerfault

const (
	panics = "a request with allocationMode All for devices with shared counters crashes the scheduler"
	twice  = "the scheduler ignores the counters of devices that claims share, and allocates a GPU and its " +
		"partitions or groups at once"
	reserves = "the scheduler keeps reservations of devices that it tried in vain. Claims with firstAvailable or " +
		"matchAttribute can stay pending although devices are free. No device is allocated twice"
	firstOnly = "the scheduler compares every request with the first device of a slice. Once that device is " +
		"allocated, others stay unused"
)

// faults is the only list of known faults. TestAllocators_EveryPatch_AsInTheTable fails for a fault without a row, and
// for a row without a fault.
var faults = []Fault{
	{"first-device-only", 34, 0, shares, shares, firstOnly},
	{"all-mode-panics", 35, 6, counters, counters, panics},
	{"shared-counters-ignored", 35, 0, all, shares, twice},
	{"reservations-kept", 35, 0, counters, Features{}, reserves},
	{"all-mode-panics", 36, 2, counters, counters, panics},
	{"shared-counters-ignored", 36, 2, all, all, twice},
	{"reservations-kept", 36, 3, counters, Features{}, reserves},
}

// unknown is the fault of a scheduler whose version is unknown. It may be any, and a device that is allocated twice is
// worse than one that is not offered. So the driver leaves out all that any patch allocates wrongly.
var unknown = []Fault{{
	Name: "unknown-version", Without: all,
	Text: "the version of the scheduler is unknown, and some versions allocate devices twice",
}}
