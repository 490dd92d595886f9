// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// Fault makes a query fail, or delays it.
type Fault struct {
	// Query is NVML's function name. A name without a version suffix covers all versions; "*" covers every query.
	// "nvmlDeviceGetFieldValues/230" is one field of that query.
	Query string `json:"query"`
	// GPU is a UUID, empty for any GPU and for queries without a GPU.
	GPU string `json:"gpu,omitempty"`
	// Code is the answer; 0 only delays the query by Latency, or until the fault is removed.
	Code nvml.Code `json:"code,omitempty"`
	// After is the number of calls that succeed first. Times is the number of calls that fail then, 0 for all.
	After   int           `json:"after,omitempty"`
	Times   int           `json:"times,omitempty"`
	Latency time.Duration `json:"latency,omitempty"`
	// AfterEffect makes a changing query change the state before it returns Code.
	AfterEffect bool `json:"afterEffect,omitempty"`
}

func (f Fault) String() string {
	where := "every GPU"
	if f.GPU != "" {
		where = f.GPU
	}
	s := fmt.Sprintf("%s on %s", f.Query, where)
	if f.Code != 0 {
		s += fmt.Sprintf(" answers %q (%d)", f.Code.Error(), int(f.Code))
	}
	if f.Latency != 0 {
		s += fmt.Sprintf(" takes %s", f.Latency)
	}
	if f.AfterEffect {
		s += " after it was done"
	}
	if f.After > 0 {
		s += fmt.Sprintf(" after %d calls", f.After)
	}
	if f.Times > 0 {
		s += fmt.Sprintf(" for %d calls", f.Times)
	}
	return s
}

func (f Fault) counts() bool { return f.After > 0 || f.Times > 0 }

func (f Fault) matches(query, uuid string, afterEffect bool) bool {
	if f.AfterEffect != afterEffect {
		return false
	}
	if f.GPU != "" && f.GPU != uuid {
		return false
	}
	return f.Query == "*" || f.Query == query || f.Query == BaseName(query)
}

// FieldFault returns the code of a field's fault, 0 without one. Such faults have no count.
func (v View) FieldFault(id uint32) nvml.Code {
	for _, f := range v.State.Faults {
		if f.Query == fmt.Sprint(fieldValues, "/", id) && (f.GPU == "" || f.GPU == v.UUID) {
			return f.Code
		}
	}
	return 0
}

const fieldValues = "nvmlDeviceGetFieldValues"

// BaseName returns a function's name without its version: nvmlDeviceGetMemoryInfo for nvmlDeviceGetMemoryInfo_v2.
func BaseName(query string) string {
	if i := strings.LastIndex(query, "_v"); i > 0 && i+2 < len(query) && strings.Trim(query[i+2:], "0123456789") == "" {
		return query[:i]
	}
	return query
}

// applyFaults counts one call of a query against the faults and returns the effect of the matching ones. It removes
// exhausted faults.
func (s *State) applyFaults(query, uuid string, afterEffect bool) (code nvml.Code, latency time.Duration, changed bool) {
	kept := s.Faults[:0]
	for _, f := range s.Faults {
		if !f.matches(query, uuid, afterEffect) {
			kept = append(kept, f)
			continue
		}
		if f.After > 0 {
			f.After--
			changed = true
			kept = append(kept, f)
			continue
		}
		latency += f.Latency
		if code == 0 {
			code = f.Code
		}
		if f.Times > 0 {
			f.Times--
			changed = true
			if f.Times == 0 {
				continue
			}
		}
		kept = append(kept, f)
	}
	s.Faults = kept
	return code, latency, changed
}
