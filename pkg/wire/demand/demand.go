// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand holds the devices that a cluster asks for: MIG profiles, NVLink groups, monitor devices, shares. The
// controller remembers them for a while and writes them into a ConfigMap, which the nodes with the setting Auto read.
// The ConfigMap also names the nodes that publish these devices, and the sample nodes, which publish what no object
// asks for.
package demand

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// Groups stands for NVLink groups of all sizes, Monitors for monitor devices, and Shares for shares of GPUs and
// partitions, beside the names of MIG profiles. Samples stands for a placement of each profile that no object asks for.
const (
	Groups   = "nvlink"
	Monitors = "monitor"
	Shares   = "share"
	Samples  = "sample"
)

const (
	// retention is the time for which devices stay published after an object last asked for them.
	retention = time.Hour
	// renewInterval is the interval in which the ConfigMap's times are renewed, so that it is written seldom.
	renewInterval = 10 * time.Minute
	// Beat is the interval in which the controller writes the ConfigMap in any case. Nodes know thereby that it runs.
	Beat = 3 * time.Minute
)

// The keys of the ConfigMap. The first is a JSON object with a time for each profile, at most renewInterval before an
// object last asked for it. The keys of kinds have such a time each. Others are the time of the last write and the
// number of nodes with GPUs. The last three are a JSON list of the sample nodes, and JSON objects with lists of the
// serving nodes and of their GPUs.
const (
	Key         = "profiles"
	groupsKey   = "groups"
	monitorsKey = "monitors"
	sharesKey   = "shares"
	writtenKey  = "written"
	nodesKey    = "nodes"
	samplesKey  = "samples"
	servingKey  = "serving"
	gpusKey     = "gpus"
)

// kinds are the keys of devices that have no profile.
var kinds = map[string]string{Groups: groupsKey, Monitors: monitorsKey, Shares: sharesKey}

// never is the time of monitor devices or shares for which no object asks. Versions that do not know them write no key.
const never = ""

const (
	maxBytes    = 64 << 10
	maxProfiles = 500
	// maxNodes is far above the nodes of a cluster.
	maxNodes = 1 << 20
	// MaxSamples is the number of sample nodes. Their names have 253 bytes at most, so the list stays below maxBytes.
	MaxSamples = 200
	// MaxServing is the number of serving nodes of a profile or of Groups. More than that are all nodes.
	MaxServing = 500
	// maxServing is the size of all names of serving nodes, and of all names of their GPUs. A ConfigMap has 1 MiB at
	// most, and each node reads it.
	maxServing = 128 << 10
	// maxGPUs is more than a node has.
	maxGPUs = 64
)

// State is the content of the ConfigMap.
type State struct {
	// Since has a time for each profile, for Groups, for Monitors and for Shares. Kinds of which an earlier version
	// does not know are in it, so that nodes publish their devices.
	Since map[string]time.Time
	// Written is zero in ConfigMaps of versions that know no groups.
	Written time.Time
	// Nodes is the number of nodes with GPUs.
	Nodes int
	// Samples are the nodes that publish a placement of each profile that no object asks for, sorted. Nil means that
	// all nodes do: earlier versions do not know them.
	Samples []string
	// Serving are the nodes that publish a profile, Groups or Shares, sorted. All nodes publish what is not in it:
	// earlier versions do not know it.
	Serving map[string][]string
	// GPUs are the PCI addresses of the GPUs that have the partitions and shares of a serving node or sample node,
	// sorted. On a node that is not in it, all GPUs do: earlier versions do not know it.
	GPUs map[string][]string
}

// Offer is a profile, Groups, Monitors, Shares or Samples on the GPU with a PCI address. With InMIGMode it is on the
// GPUs that an administrator cut, and without an address on all GPUs of a node.
type Offer struct{ What, GPU string }

// InMIGMode stands for the GPUs that have no whole device, because an administrator switched their MIG mode on. The
// controller does not name them.
const InMIGMode = "mig"

// OffersOf returns what a node publishes.
func (s State) OffersOf(node string) map[Offer]bool {
	out := map[Offer]bool{}
	gpus, listed := s.GPUs[node]
	add := func(what string, everywhere bool) {
		if everywhere || !listed || what == Groups {
			out[Offer{What: what}] = true
			return
		}
		for _, address := range append(slices.Clone(gpus), InMIGMode) {
			out[Offer{what, address}] = true
		}
	}
	for what := range s.Since {
		if nodes, some := s.Serving[what]; !some || slices.Contains(nodes, node) {
			add(what, !some)
		}
	}
	if s.Samples == nil || slices.Contains(s.Samples, node) {
		add(Samples, false)
	}
	return out
}

// Next returns the state after the last one, with the devices that are asked for now, and the choice of nodes and GPUs.
// It leaves out serving nodes of devices that are not published, and too many of them. changed means that it must be
// written.
func Next(last State, asked []string, choice State, now time.Time) (next State, changed bool) {
	next = choice
	next.Since, next.Written = maps.Clone(last.Since), last.Written
	if next.Since == nil {
		next.Since = map[string]time.Time{}
	}
	for _, what := range asked {
		// A time in the future is from a clock that was wrong.
		if since, known := next.Since[what]; known && now.Sub(since) < renewInterval && !since.After(now) ||
			len(next.Since) >= maxProfiles && !known {
			continue
		}
		next.Since[what] = now
	}
	maps.DeleteFunc(next.Since, func(_ string, since time.Time) bool {
		return now.Sub(since) >= retention+renewInterval || since.After(now)
	})
	next.Serving = bounded(choice.Serving, next.Since)
	next.GPUs = short(choice.GPUs)
	changed = !maps.EqualFunc(last.Since, next.Since, time.Time.Equal) ||
		!maps.EqualFunc(last.Serving, next.Serving, slices.Equal) ||
		!maps.EqualFunc(last.GPUs, next.GPUs, slices.Equal) || now.Sub(last.Written) >= Beat ||
		last.Written.After(now) ||
		!slices.Equal(last.Samples, next.Samples) || (last.Samples == nil) != (next.Samples == nil)
	if changed {
		next.Written = now
	}
	return next, changed
}

// bounded returns the serving nodes of published devices. If their names are too long together, the longest lists go.
func bounded(serving map[string][]string, since map[string]time.Time) map[string][]string {
	out, size, total := map[string][]string{}, map[string]int{}, 0
	for what, nodes := range serving {
		if _, published := since[what]; !published || len(nodes) > MaxServing {
			continue
		}
		out[what] = nodes
		for _, n := range nodes {
			size[what] += len(n) + len(`"",`)
		}
		total += size[what]
	}
	byLength := slices.SortedFunc(maps.Keys(out), func(a, b string) int {
		return cmp.Or(size[b]-size[a], strings.Compare(a, b))
	})
	for _, what := range byLength {
		if total <= maxServing {
			break
		}
		total -= size[what]
		delete(out, what)
	}
	return out
}

// short leaves out the last nodes if the names of all GPUs are too long together. All GPUs of these nodes serve.
func short(gpus map[string][]string) map[string][]string {
	out, size := map[string][]string{}, 0
	for _, node := range slices.Sorted(maps.Keys(gpus)) {
		size += len(node) + len(`"":[],`)
		for _, address := range gpus[node] {
			size += len(address) + len(`"",`)
		}
		if size > maxServing {
			break
		}
		out[node] = gpus[node]
	}
	return out
}

// Encode returns the data of the ConfigMap.
func Encode(s State) map[string]string {
	data, times := map[string]string{}, map[string]string{}
	for what, since := range s.Since {
		times[what] = stamp(since)
	}
	data[monitorsKey], data[sharesKey] = never, never
	for kind, key := range kinds {
		if since, ok := times[kind]; ok {
			data[key] = since
			delete(times, kind)
		}
	}
	text, _ := json.Marshal(times) // Strings always encode, and encoding/json sorts keys.
	data[Key], data[writtenKey], data[nodesKey] = string(text), stamp(s.Written), strconv.Itoa(s.Nodes)
	if s.Samples != nil {
		text, _ := json.Marshal(s.Samples)
		data[samplesKey] = string(text)
	}
	if len(s.Serving) > 0 {
		text, _ := json.Marshal(s.Serving)
		data[servingKey] = string(text)
	}
	if len(s.GPUs) > 0 {
		text, _ := json.Marshal(s.GPUs)
		data[gpusKey] = string(text)
	}
	return data
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Decode is the inverse of Encode, to the second.
func Decode(data map[string]string) (State, error) {
	text, ok := data[Key]
	if !ok {
		return State{}, fmt.Errorf("the key %s is missing", Key)
	}
	if len(text) > maxBytes {
		return State{}, fmt.Errorf("%s has %d bytes, but the limit is %d", Key, len(text), maxBytes)
	}
	var times map[string]string
	if err := json.Unmarshal([]byte(text), &times); err != nil || times == nil {
		return State{}, fmt.Errorf("%s is not a JSON object of times", Key)
	}
	if len(times) > maxProfiles {
		return State{}, fmt.Errorf("%s has %d profiles, but the limit is %d", Key, len(times), maxProfiles)
	}
	out := State{Since: map[string]time.Time{}}
	for profile, since := range times {
		if !gpu.ValidProfile(profile) {
			return State{}, fmt.Errorf("%s: %.50q is not a MIG profile", Key, profile)
		}
		at, err := parseTime(Key+"."+profile, since)
		if err != nil {
			return State{}, err
		}
		out.Since[profile] = at
	}
	written, ok := data[writtenKey]
	if !ok {
		out.Since[Groups], out.Since[Monitors], out.Since[Shares] = time.Time{}, time.Time{}, time.Time{}
		return out, nil
	}
	var err error
	if out.Written, err = parseTime(writtenKey, written); err != nil {
		return State{}, err
	}
	for kind, key := range kinds {
		since, ok := data[key]
		if !ok || since == never {
			continue
		}
		if out.Since[kind], err = parseTime(key, since); err != nil {
			return State{}, err
		}
	}
	for _, kind := range []string{Monitors, Shares} {
		if _, known := data[kinds[kind]]; !known {
			out.Since[kind] = time.Time{}
		}
	}
	if out.Nodes, err = strconv.Atoi(data[nodesKey]); err != nil || out.Nodes < 0 || out.Nodes > maxNodes {
		return State{}, fmt.Errorf("%s: %.50q is not a number of nodes", nodesKey, data[nodesKey])
	}
	if text, known := data[samplesKey]; known {
		if out.Samples, err = parseSamples(text); err != nil {
			return State{}, err
		}
	}
	if text, known := data[servingKey]; known {
		if out.Serving, err = parseServing(text); err != nil {
			return State{}, err
		}
	}
	if text, known := data[gpusKey]; known {
		if out.GPUs, err = parseGPUs(text); err != nil {
			return State{}, err
		}
	}
	return out, nil
}

func parseServing(text string) (serving map[string][]string, err error) {
	switch {
	case len(text) > 2*maxServing:
		return nil, fmt.Errorf("%s has %d bytes, but the limit is %d", servingKey, len(text), 2*maxServing)
	case json.Unmarshal([]byte(text), &serving) != nil || serving == nil:
		return nil, fmt.Errorf("%s: %.50q is not a JSON object of lists of nodes", servingKey, text)
	}
	for what, nodes := range serving {
		if what != Groups && what != Shares && !gpu.ValidProfile(what) || len(nodes) > MaxServing {
			return nil, fmt.Errorf("%s: %.50q is not a MIG profile, %s or %s, or has more than %d nodes", servingKey,
				what, Groups, Shares, MaxServing)
		}
		slices.Sort(nodes)
	}
	return serving, nil
}

func parseGPUs(text string) (gpus map[string][]string, err error) {
	switch {
	case len(text) > 2*maxServing:
		return nil, fmt.Errorf("%s has %d bytes, but the limit is %d", gpusKey, len(text), 2*maxServing)
	case json.Unmarshal([]byte(text), &gpus) != nil || gpus == nil:
		return nil, fmt.Errorf("%s: %.50q is not a JSON object of lists of PCI addresses", gpusKey, text)
	}
	for node, addresses := range gpus {
		if len(addresses) > maxGPUs {
			return nil, fmt.Errorf("%s: the node %.50q has %d GPUs, but the limit is %d", gpusKey, node,
				len(addresses), maxGPUs)
		}
		slices.Sort(addresses)
	}
	return gpus, nil
}

func parseSamples(text string) (nodes []string, err error) {
	switch {
	case len(text) > maxBytes:
		return nil, fmt.Errorf("%s has %d bytes, but the limit is %d", samplesKey, len(text), maxBytes)
	case json.Unmarshal([]byte(text), &nodes) != nil || nodes == nil:
		return nil, fmt.Errorf("%s: %.50q is not a JSON list of nodes", samplesKey, text)
	case len(nodes) > MaxSamples:
		return nil, fmt.Errorf("%s has %d nodes, but the limit is %d", samplesKey, len(nodes), MaxSamples)
	}
	slices.Sort(nodes)
	return nodes, nil
}

func parseTime(field, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.UTC().Year() < 1 || at.UTC().Year() > 9999 {
		return time.Time{}, fmt.Errorf("%s: %.50q is not a time such as 2026-01-31T12:00:00Z", field, text)
	}
	return at, nil
}
