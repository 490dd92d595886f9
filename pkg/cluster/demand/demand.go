// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand holds the MIG profiles that a cluster asks for, and whether it asks for NVLink groups. The controller
// remembers them for a while and writes them into a ConfigMap, which the nodes with the setting Auto read.
package demand

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// Groups stands for NVLink groups of all sizes, beside the names of MIG profiles.
const Groups = "nvlink"

const (
	// keep is the time for which devices stay published after an object last asked for them.
	keep = time.Hour
	// renew is the interval in which the ConfigMap's times are renewed, so that it is written seldom.
	renew = 10 * time.Minute
	// Beat is the interval in which the controller writes the ConfigMap in any case. Nodes know thereby that it runs.
	Beat = 3 * time.Minute
)

// The keys of the ConfigMap. The first is a JSON object with a time for each profile, at most Renew before an object last
// asked for it. The second is such a time for groups. The others are the time of the last write, and the number of nodes
// with GPUs.
const (
	Key        = "profiles"
	groupsKey  = "groups"
	writtenKey = "written"
	nodesKey   = "nodes"
)

const (
	maxBytes    = 64 << 10
	maxProfiles = 500
	// maxNodes is far above the nodes of a cluster.
	maxNodes = 1 << 20
)

// State is the content of the ConfigMap.
type State struct {
	// Since has a time for each profile and for Groups.
	Since map[string]time.Time
	// Written is zero in ConfigMaps of earlier versions, which do not know of groups. Groups is in Since then.
	Written time.Time
	// Nodes is the number of nodes with GPUs.
	Nodes int
}

// Next returns the state after the last one, with the devices that are asked for now. changed means that it must be
// written.
func Next(last State, asked []string, nodes int, now time.Time) (next State, changed bool) {
	next = State{Since: maps.Clone(last.Since), Written: last.Written, Nodes: nodes}
	if next.Since == nil {
		next.Since = map[string]time.Time{}
	}
	for _, what := range asked {
		// A time in the future is from a clock that was wrong.
		if since, known := next.Since[what]; known && now.Sub(since) < renew && !since.After(now) || len(next.Since) >= maxProfiles && !known {
			continue
		}
		next.Since[what] = now
	}
	maps.DeleteFunc(next.Since, func(_ string, since time.Time) bool { return now.Sub(since) >= keep+renew || since.After(now) })
	changed = !maps.EqualFunc(last.Since, next.Since, time.Time.Equal) || now.Sub(last.Written) >= Beat || last.Written.After(now)
	if changed {
		next.Written = now
	}
	return next, changed
}

// Encode returns the data of the ConfigMap.
func Encode(s State) map[string]string {
	data, times := map[string]string{}, map[string]string{}
	for what, since := range s.Since {
		times[what] = stamp(since)
	}
	if since, ok := times[Groups]; ok {
		delete(times, Groups)
		data[groupsKey] = since
	}
	text, _ := json.Marshal(times) // Strings always encode, and encoding/json sorts keys.
	data[Key], data[writtenKey], data[nodesKey] = string(text), stamp(s.Written), strconv.Itoa(s.Nodes)
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
		out.Since[Groups] = time.Time{}
		return out, nil
	}
	var err error
	if out.Written, err = parseTime(writtenKey, written); err != nil {
		return State{}, err
	}
	if since, ok := data[groupsKey]; ok {
		if out.Since[Groups], err = parseTime(groupsKey, since); err != nil {
			return State{}, err
		}
	}
	if out.Nodes, err = strconv.Atoi(data[nodesKey]); err != nil || out.Nodes < 0 || out.Nodes > maxNodes {
		return State{}, fmt.Errorf("%s: %.50q is not a number of nodes", nodesKey, data[nodesKey])
	}
	return out, nil
}

func parseTime(field, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.UTC().Year() < 1 || at.UTC().Year() > 9999 {
		return time.Time{}, fmt.Errorf("%s: %.50q is not a time such as 2026-01-31T12:00:00Z", field, text)
	}
	return at, nil
}
