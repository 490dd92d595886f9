// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// leastMemory is the least limit MPS takes (CUDA MPS documentation: limits are in whole mebibytes).
const leastMemory = 1 << 20

var (
	uuidKey  = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z-]{1,60}$`)
	indexKey = regexp.MustCompile(`^(0|[1-9][0-9]{0,2})$`)
)

// complete says what is wrong that no device is needed to see, and fills the defaults in.
func (s *Sharing) complete(mig bool) error {
	if s == nil {
		return nil
	}
	switch s.Strategy {
	case StrategyTimeSlicing:
		if s.MPS != nil {
			return errors.New("sharing.mpsConfig: is for the strategy MPS, and sharing.strategy is TimeSlicing; leave it out")
		}
		if s.TimeSlicing == nil {
			s.TimeSlicing = &TimeSlicingConfig{}
		}
		return s.TimeSlicing.complete(mig)
	case StrategyMPS:
		if s.TimeSlicing != nil {
			return errors.New("sharing.timeSlicingConfig: is for the strategy TimeSlicing, and sharing.strategy is MPS; leave it out")
		}
		if s.MPS == nil {
			s.MPS = &MPSConfig{}
		}
		return s.MPS.check()
	case "":
		return errors.New("sharing.strategy: missing, use TimeSlicing or MPS")
	}
	return fmt.Errorf("sharing.strategy: %q is not known, use TimeSlicing or MPS", clip(string(s.Strategy)))
}

func (t *TimeSlicingConfig) complete(mig bool) error {
	switch t.Interval {
	case "":
		t.Interval = IntervalDefault
	case IntervalDefault:
	case IntervalShort, IntervalMedium, IntervalLong:
		if mig {
			return fmt.Errorf("sharing.timeSlicingConfig.interval: %s: a MIG device has no interval to set; leave it out", t.Interval)
		}
	default:
		return fmt.Errorf("sharing.timeSlicingConfig.interval: %q is not known, use Default, Short, Medium or Long", clip(string(t.Interval)))
	}
	return nil
}

func (m *MPSConfig) check() error {
	if p := m.DefaultActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		return fmt.Errorf("sharing.mpsConfig.defaultActiveThreadPercentage: %d is not a percentage, use 0 to 100", *p)
	}
	if q := m.DefaultPinnedDeviceMemoryLimit; q != nil {
		if _, err := limit("sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", *q); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.DefaultPerDevicePinnedMemoryLimit)) {
		field := "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[" + clip(key) + "]"
		if !uuidKey.MatchString(key) && !indexKey.MatchString(key) {
			return fmt.Errorf("%s: the key is neither a UUID (GPU-…, MIG-…) nor a position in the claim (0, 1, …)", field)
		}
		if _, err := limit(field, m.DefaultPerDevicePinnedMemoryLimit[key]); err != nil {
			return err
		}
	}
	return nil
}

// limit is a memory limit in bytes.
func limit(field string, q resource.Quantity) (uint64, error) {
	n, ok := q.AsInt64()
	if !ok {
		// A fraction of a byte, or more than any device has.
		n = q.Value()
		if q.CmpInt64(n) != 0 {
			return 0, fmt.Errorf("%s: %s is not a number of bytes, use a quantity like 10Gi", field, clip(q.String()))
		}
	}
	if n < leastMemory {
		return 0, fmt.Errorf("%s: %s is less than 1Mi, the least that MPS limits to", field, clip(q.String()))
	}
	return uint64(n), nil
}

// Device is one that a claim has, as limits are checked against it.
type Device struct {
	UUID string
	// Index is its position in the claim.
	Index       int
	MIG         bool
	MemoryBytes uint64
}

// Check says what is wrong of a device, among all that the claim has.
func (s *Sharing) Check(device Device, claimed []Device) error {
	if s == nil || s.MPS == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.MPS.DefaultPerDevicePinnedMemoryLimit)) {
		if !slices.ContainsFunc(claimed, func(d Device) bool { return d.named(key) }) {
			return fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[%s]: the claim has no such device, it has %d (0 to %d)",
				clip(key), len(claimed), len(claimed)-1)
		}
	}
	n, ok := s.MPS.LimitFor(device, claimed)
	if ok && device.MemoryBytes > 0 && n > device.MemoryBytes {
		return fmt.Errorf("sharing.mpsConfig: a memory limit of %d MiB is more than the device has, %d MiB", n>>20, device.MemoryBytes>>20)
	}
	return nil
}

func (d Device) named(key string) bool {
	return d.UUID != "" && d.UUID == key || strconv.Itoa(d.Index) == key
}

// LimitFor is the memory that each process may allocate on a device, in bytes: by its UUID, else by its position in the
// claim, else the default.
func (m *MPSConfig) LimitFor(device Device, _ []Device) (bytes uint64, ok bool) {
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
	n, err := limit("", q)
	return n, err == nil
}
