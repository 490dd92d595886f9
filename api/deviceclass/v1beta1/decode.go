// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"cmp"
	gojson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/json"
)

// maxBytes is the API's own limit on opaque parameters (ResourceClaim, v1).
const maxBytes = 10 * 1024

// notServed lists the group's kinds that only other drivers serve.
var notServed = []string{"VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"}

// Decode reads one parameter object and fills in its defaults. Every error is or wraps a FieldError.
func Decode(data []byte) (Config, error) {
	if len(data) > maxBytes {
		return Config{}, invalid("", "parameters are %d bytes, the API allows %d", len(data), maxBytes)
	}
	// The kind is decoded first: this driver does not validate the fields of a kind that it does not serve.
	var header struct {
		APIVersion any `json:"apiVersion"`
		Kind       any `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &header); err != nil {
		return Config{}, invalid("", "parameters are not a JSON object: %w", err)
	}
	apiVersion, err := text("apiVersion", header.APIVersion)
	if err != nil {
		return Config{}, err
	}
	kind, err := text("kind", header.Kind)
	switch {
	case err != nil:
		return Config{}, err
	case apiVersion != GroupVersion:
		return Config{}, invalid("apiVersion", "%q is not known, use %q", clip(apiVersion), GroupVersion)
	case slices.Contains(notServed, kind):
		return Config{}, invalid("kind", "%s is not supported by this driver, use %s or %s", kind, KindGPUConfig,
			KindMIGDeviceConfig)
	case kind != KindGPUConfig && kind != KindMIGDeviceConfig:
		return Config{}, invalid("kind", "%q is not known, use %s or %s", clip(kind), KindGPUConfig,
			KindMIGDeviceConfig)
	}
	var config Config
	if err = Unmarshal(data, &config); err == nil {
		err = config.complete()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", kind, err)
	}
	return config, nil
}

func text(field string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case nil:
		return "", invalid(field, "missing")
	default:
		return "", invalid(field, "%s is not a string", clip(fmt.Sprint(v)))
	}
}

type FieldError struct {
	// Path is relative to the object, such as sharing.mpsConfig.multiUser. It is empty for the object as a whole.
	Path string
	// Problem names the value and the allowed values.
	Problem error
}

func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Problem.Error()
	}
	return e.Path + ": " + e.Problem.Error()
}

func (e *FieldError) Unwrap() error { return e.Problem }

func invalid(path, format string, args ...any) error {
	return &FieldError{path, fmt.Errorf(format, args...)}
}

// Unmarshal decodes JSON as strictly as the API server: names are case-sensitive, and an unknown or duplicate field is
// an error. Every error is a FieldError.
func Unmarshal(data []byte, into any) error {
	strict, err := json.UnmarshalStrict(data, into)
	var wrongType *gojson.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		// The library's text names Go types.
		return invalid(wrongType.Field, "a %s is not allowed here", wrongType.Value)
	case err != nil:
		return &FieldError{"", err}
	case len(strict) == 0:
		return nil
	}
	var field json.FieldError
	if !errors.As(strict[0], &field) {
		return &FieldError{"", strict[0]}
	}
	// The path's parent makes the text name the object with the unknown field.
	parent, name := "", field.FieldPath()
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, name = name[:i], name[i+1:]
	}
	field.SetFieldPath(clip(name))
	return &FieldError{clip(parent), field}
}

// clip shortens a user's long texts, so that they do not fill an Event.
func clip(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

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
			return invalid("sharing.mpsConfig",
				"is for the strategy MPS, and sharing.strategy is TimeSlicing; leave it out")
		}
		if s.TimeSlicing == nil {
			s.TimeSlicing = &TimeSlicingConfig{}
		}
		return s.TimeSlicing.complete(mig)
	case StrategyMPS:
		if s.TimeSlicing != nil {
			return invalid("sharing.timeSlicingConfig",
				"is for the strategy TimeSlicing, and sharing.strategy is MPS; leave it out")
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

// ErrExponent is the cause of errors of Quantities with long exponents.
var ErrExponent = errors.New("an exponent has at most two digits, use a quantity like 10Gi")

var longExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3,}`)

func (q *Quantity) UnmarshalJSON(data []byte) error {
	if longExponent.Match(data) {
		return fmt.Errorf("%s: %w", clip(string(data)), ErrExponent)
	}
	return q.Quantity.UnmarshalJSON(data)
}

func checkLimit(path string, q Quantity) error {
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
	// Index is the device's position among those that have the configuration, as NVIDIA's driver counts.
	Index int
	// MemoryBytes is 0 if it is unknown.
	MemoryBytes uint64
}

// Check checks the limits against a device, among all devices that have the configuration.
func (s *Sharing) Check(device Device, configured []Device) error {
	if s == nil || s.MPS == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.MPS.DefaultPerDevicePinnedMemoryLimit)) {
		named := func(d Device) bool { return d.UUID != "" && d.UUID == key || strconv.Itoa(d.Index) == key }
		if !slices.ContainsFunc(configured, named) {
			return invalid(deviceLimit(key), "the claim has no such device with these parameters, it has %d (0 to %d)",
				len(configured), len(configured)-1)
		}
	}
	n, ok := s.MPS.LimitFor(device)
	if ok && device.MemoryBytes > 0 && n > device.MemoryBytes {
		return invalid("sharing.mpsConfig", "a memory limit of %d MiB is more than the device has, %d MiB", n>>20,
			device.MemoryBytes>>20)
	}
	return nil
}

// LimitFor returns the memory limit of each process on a device, in bytes: the limit by UUID, then by position
// among the configured devices, then the default.
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
