// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// minLimit is the smallest limit that MPS accepts (CUDA MPS documentation: limits are in whole mebibytes).
const minLimit = 1 << 20

// MaxMemory is more than any device has, in bytes: who writes more has made a mistake.
const MaxMemory = 1 << 44

var (
	uuidKey  = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z-]{1,60}$`)
	indexKey = regexp.MustCompile(`^(0|[1-9][0-9]{0,2})$`)
)

// complete returns an error for parameters that are invalid for every device, and sets the defaults.
func (c *Config) complete() error {
	mig := c.Kind == KindMIGDeviceConfig
	if mig && c.Topology != nil {
		return invalid("", "unknown field %q", "topology")
	}
	s := c.Sharing
	if s == nil {
		return nil
	}
	switch s.Strategy {
	case StrategyTimeSlicing:
		if s.MPS != nil {
			return invalid("sharing.mpsConfig", "is for the strategy MPS, and sharing.strategy is TimeSlicing; leave it out")
		}
		if s.TimeSlicing == nil {
			s.TimeSlicing = &TimeSlicingConfig{}
		}
		return s.TimeSlicing.complete(mig)
	case StrategyMPS:
		if s.TimeSlicing != nil {
			return invalid("sharing.timeSlicingConfig", "is for the strategy TimeSlicing, and sharing.strategy is MPS; leave it out")
		}
		if s.MPS == nil {
			s.MPS = &MPSConfig{}
		}
		return s.MPS.check()
	case "":
		return invalid("sharing.strategy", "missing, use TimeSlicing or MPS")
	}
	return invalid("sharing.strategy", "%q is not known, use TimeSlicing or MPS", clip(string(s.Strategy)))
}

func (t *TimeSlicingConfig) complete(mig bool) error {
	const path = "sharing.timeSlicingConfig.interval"
	t.Interval = cmp.Or(t.Interval, IntervalDefault)
	if !slices.Contains(Intervals, t.Interval) {
		return invalid(path, "%q is not known, use Default, Short, Medium or Long", clip(string(t.Interval)))
	}
	if mig && t.Interval != IntervalDefault {
		return invalid(path, "%s: a MIG device has no interval to set; leave it out", t.Interval)
	}
	return nil
}

func (m *MPSConfig) check() error {
	const path = "sharing.mpsConfig."
	if p := m.DefaultActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		return invalid(path+"defaultActiveThreadPercentage", "%d is not a percentage, use 0 to 100", *p)
	}
	if q := m.DefaultPinnedDeviceMemoryLimit; q != nil {
		if err := checkLimit(path+"defaultPinnedDeviceMemoryLimit", *q); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.DefaultPerDevicePinnedMemoryLimit)) {
		path := deviceLimit(key)
		if !uuidKey.MatchString(key) && !indexKey.MatchString(key) {
			return invalid(path, "the key is neither a UUID (GPU-…, MIG-…) nor a position in the claim (0, 1, …)")
		}
		if err := checkLimit(path, m.DefaultPerDevicePinnedMemoryLimit[key]); err != nil {
			return err
		}
	}
	return nil
}

func deviceLimit(key string) (path string) {
	return "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[" + clip(key) + "]"
}

func checkLimit(path string, q resource.Quantity) error {
	switch { // In this order: Value wraps beyond int64.
	case q.CmpInt64(MaxMemory) > 0:
		return invalid(path, "%s is more than any device has", clip(q.String()))
	case q.CmpInt64(minLimit) < 0:
		return invalid(path, "%s is less than 1Mi, the least that MPS limits to", clip(q.String()))
	case q.CmpInt64(q.Value()) != 0:
		return invalid(path, "%s is not a number of bytes, use a quantity like 10Gi", clip(q.String()))
	}
	return nil
}

// Device is a device of a claim, for checking limits against it.
type Device struct {
	UUID string
	// Index is the device's position in the claim.
	Index int
	// MemoryBytes is 0 if it is unknown.
	MemoryBytes uint64
}

// Check checks the limits against a device, among all devices of the claim.
func (s *Sharing) Check(device Device, claimed []Device) error {
	if s == nil || s.MPS == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.MPS.DefaultPerDevicePinnedMemoryLimit)) {
		named := func(d Device) bool { return d.UUID != "" && d.UUID == key || strconv.Itoa(d.Index) == key }
		if !slices.ContainsFunc(claimed, named) {
			return invalid(deviceLimit(key), "the claim has no such device, it has %d (0 to %d)", len(claimed), len(claimed)-1)
		}
	}
	n, ok := s.MPS.LimitFor(device)
	if ok && device.MemoryBytes > 0 && n > device.MemoryBytes {
		return invalid("sharing.mpsConfig", "a memory limit of %d MiB is more than the device has, %d MiB", n>>20, device.MemoryBytes>>20)
	}
	return nil
}

// LimitFor returns the memory limit of each process on a device, in bytes: the limit by UUID, then by position in the
// claim, then the default.
func (m *MPSConfig) LimitFor(device Device) (bytes uint64, ok bool) {
	q, ok := m.DefaultPerDevicePinnedMemoryLimit[device.UUID]
	if !ok || device.UUID == "" {
		q, ok = m.DefaultPerDevicePinnedMemoryLimit[strconv.Itoa(device.Index)]
	}
	if !ok {
		if m.DefaultPinnedDeviceMemoryLimit == nil {
			return 0, false
		}
		q = *m.DefaultPinnedDeviceMemoryLimit
	}
	return uint64(q.Value()), true
}
