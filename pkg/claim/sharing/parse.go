// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"gpu-dra-driver/api/deviceclass/v1beta1"
)

// maxBytes exceeds the size of any ConfigMap.
const maxBytes = 2 << 20

// maxReplicas is far above useful numbers, and keeps the memory of a share above zero.
const maxReplicas = 1000

// file is the config file of NVIDIA's device plugin with this driver's own fields.
type file struct {
	Version string `json:"version"`
	// Fields of the device plugin only.
	Flags     json.RawMessage `json:"flags"`
	Resources json.RawMessage `json:"resources"`
	Imex      json.RawMessage `json:"imex"`

	Publish []publishEntry `json:"publish"`
	Sharing struct {
		TimeSlicing *shared `json:"timeSlicing"`
		MPS         *shared `json:"mps"`
		Strategy    string  `json:"strategy"`
		MaxShares   *int    `json:"maxShares"`
	} `json:"sharing"`
}

type shared struct {
	RenameByDefault            bool    `json:"renameByDefault"`
	FailRequestsGreaterThanOne bool    `json:"failRequestsGreaterThanOne"`
	Replicas                   *int    `json:"replicas"`
	MaxShares                  *int    `json:"maxShares"`
	Interval                   string  `json:"interval"`
	Resources                  []entry `json:"resources"`
}

type entry struct {
	Name      string          `json:"name"`
	Rename    json.RawMessage `json:"rename"`
	Devices   json.RawMessage `json:"devices"`
	Replicas  *int            `json:"replicas"`
	MaxShares *int            `json:"maxShares"`
	Nodes     []string        `json:"nodes"`
	Products  []string        `json:"products"`
}

// Parse reads a file. ignored lists the fields that this driver does not use. The error names the field, its value and
// the allowed values. An empty file yields the zero Settings.
func Parse(data []byte) (s Settings, ignored []string, err error) {
	if len(data) > maxBytes {
		return Settings{}, nil, fmt.Errorf("the file has %d bytes, but the limit is %d", len(data), maxBytes)
	}
	object, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return Settings{}, nil, fmt.Errorf("the file is not YAML: %s", clip(err.Error()))
	}
	if string(object) == "null" {
		return Settings{}, nil, nil
	}
	var f file
	if err := v1beta1.Unmarshal(object, &f); err != nil {
		return Settings{}, nil, err
	}
	if f.Version != "" && f.Version != "v1" {
		return Settings{}, nil, fmt.Errorf("version: %q is not known, use v1", clip(f.Version))
	}
	for name, raw := range map[string]json.RawMessage{"flags": f.Flags, "resources": f.Resources, "imex": f.Imex} {
		if raw != nil {
			ignored = append(ignored, name)
		}
	}
	if err := s.defaults(f); err != nil {
		return Settings{}, nil, err
	}
	for i, e := range f.Publish {
		p, err := e.read(fmt.Sprintf("publish[%d]", i))
		if err != nil {
			return Settings{}, nil, err
		}
		s.publish = append(s.publish, p)
	}
	sections := map[v1beta1.Strategy]*shared{v1beta1.StrategyTimeSlicing: f.Sharing.TimeSlicing,
		v1beta1.StrategyMPS: f.Sharing.MPS}
	for _, strategy := range slices.Backward(strategies) { // The first rule for a device counts.
		more, err := s.add(strategy, sections[strategy.Name])
		if err != nil {
			return Settings{}, nil, err
		}
		ignored = append(ignored, more...)
	}
	return s, slices.Sorted(slices.Values(ignored)), s.clash()
}

func (s *Settings) defaults(f file) (err error) {
	switch name := v1beta1.Strategy(f.Sharing.Strategy); {
	case name == "None":
		s.common.None = true
	case name == "" || Of(name).Name == name:
		s.common.Strategy = name
	default:
		return fmt.Errorf("sharing.strategy: %q is not known, use MPS, TimeSlicing or None", clip(f.Sharing.Strategy))
	}
	s.common.MaxShares, err = bounded("sharing.maxShares", f.Sharing.MaxShares, maxClients)
	return err
}

// bounded returns a number from 1 to limit, or 0 if the field is not set.
func bounded(field string, n *int, limit int) (int, error) {
	switch {
	case n == nil:
		return 0, nil
	case *n < 1 || *n > limit:
		return 0, fmt.Errorf("%s: %d is not allowed, use 1 to %d", field, *n, limit)
	}
	return *n, nil
}

func (s *Settings) add(strategy Strategy, from *shared) (ignored []string, err error) {
	if from == nil {
		return nil, nil
	}
	field := "sharing." + strategy.Section
	common := rule{policy: Policy{
		Strategy: strategy.Name,
		FailMany: from.FailRequestsGreaterThanOne,
		Interval: v1beta1.Interval(from.Interval),
		Renamed:  from.RenameByDefault,
	}}
	if i := common.policy.Interval; i != "" && !slices.Contains(v1beta1.Intervals, i) {
		return nil, fmt.Errorf("%s.interval: %q is not known, use Default, Short, Medium or Long", field,
			clip(from.Interval))
	}
	if common.policy.Interval != "" && !strategy.Interval {
		return nil, fmt.Errorf("%s.interval: only timeSlicing has this field", field)
	}
	if common.policy.MaxShares, err = bounded(field+".maxShares", from.MaxShares, maxClients); err != nil {
		return nil, err
	}
	for i, e := range from.Resources {
		r, err := e.rule(fmt.Sprintf("%s.resources[%d]", field, i), common)
		if err != nil {
			return nil, err
		}
		if e.Rename != nil {
			ignored = append(ignored, fmt.Sprintf("%s.resources[%d].rename", field, i))
		}
		s.rules = append(s.rules, r)
	}
	if from.Replicas != nil {
		if common.policy.Replicas, err = bounded(field+".replicas", from.Replicas, maxReplicas); err != nil {
			return nil, err
		}
		common.name, common.devices = "nvidia.com/*", devices{all: true}
		s.rules = append(s.rules, common)
	}
	return ignored, nil
}

func (e entry) rule(field string, r rule) (rule, error) {
	if e.Replicas == nil {
		return r, errors.New(field + ".replicas: missing")
	}
	replicas, err := bounded(field+".replicas", e.Replicas, maxReplicas)
	if err != nil {
		return r, err
	}
	maxShares, err := bounded(field+".maxShares", e.MaxShares, maxClients)
	if err != nil {
		return r, err
	}
	r.policy.Replicas, r.policy.MaxShares = replicas, cmp.Or(maxShares, r.policy.MaxShares)
	r.name = e.Name
	if e.Name != "" && !strings.Contains(e.Name, "/") {
		r.name = "nvidia.com/" + e.Name // The device plugin adds the prefix too.
	}
	if !strings.HasPrefix(r.name, "nvidia.com/") {
		return r, fmt.Errorf("%s.name: %q is not a GPU resource, use nvidia.com/gpu or nvidia.com/mig-1g.10gb",
			field, clip(e.Name))
	}
	r.nodes, r.products = e.Nodes, e.Products
	if err := checkPatterns(field,
		map[string][]string{"name": {r.name}, "nodes": e.Nodes, "products": e.Products}); err != nil {
		return r, err
	}
	r.devices, err = readDevices(field+".devices", e.Devices)
	return r, err
}

func checkPatterns(field string, of map[string][]string) error {
	for what, patterns := range of {
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return fmt.Errorf("%s.%s: %q is not a valid pattern", field, what, clip(p))
			}
		}
	}
	return nil
}

var deviceForm = regexp.MustCompile(`^(GPU-[0-9a-zA-Z-]+|MIG-[0-9a-zA-Z/-]+|[0-9]{1,3}(:[0-9]{1,3})?)$`)

// readDevices reads "all", a number or a list.
func readDevices(field string, raw json.RawMessage) (devices, error) {
	if raw == nil {
		return devices{all: true}, nil
	}
	var value any
	_ = json.Unmarshal(raw, &value) // The caller parsed it already.
	switch v := value.(type) {
	case string:
		if v == "all" {
			return devices{all: true}, nil
		}
	case float64:
		if n := int(v); n >= 1 && float64(n) == v {
			return devices{count: n}, nil
		}
	case []any:
		var ids []string
		for _, one := range v {
			ids = append(ids, fmt.Sprint(one))
		}
		if len(ids) > 0 && !slices.ContainsFunc(ids, func(id string) bool { return !deviceForm.MatchString(id) }) {
			return devices{ids: ids}, nil
		}
	}
	return devices{}, fmt.Errorf("%s: %s is not allowed, use all, a number, or a list of indices and UUIDs", field,
		clip(string(raw)))
}

// clash refuses two strategies for one resource, because only their order would decide between them.
func (s Settings) clash() error {
	replicated := map[v1beta1.Strategy]bool{}
	for _, r := range s.rules {
		if r.policy.Replicas > 1 && len(r.nodes)+len(r.products) == 0 && r.devices.all {
			replicated[r.policy.Strategy] = true
		}
	}
	if len(replicated) < 2 {
		return nil
	}
	for _, a := range s.rules {
		if slices.ContainsFunc(s.rules, func(b rule) bool {
			return a.name == b.name && a.policy.Strategy != b.policy.Strategy
		}) {
			return fmt.Errorf("sharing: %s is under both timeSlicing and mps; remove one, or separate them by nodes, "+
				"products or devices", a.name)
		}
	}
	return nil
}

// clip shortens quoted input, because Events have a maximum length.
func clip(s string) string {
	const maxLength = 100
	if len(s) <= maxLength {
		return s
	}
	return strings.ToValidUTF8(s[:maxLength], "") + "…"
}
