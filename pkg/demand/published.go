// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

const (
	// Keep is the time for which a profile stays published after an object last asked for it.
	Keep = time.Hour
	// Renew is the interval in which the ConfigMap's times are renewed, so that it is written seldom.
	Renew = 10 * time.Minute
)

// Key is the key of the ConfigMap. Its value is a JSON object with a time for each profile, at most Renew before an object
// last asked for it.
const Key = "profiles"

const (
	maxBytes    = 64 << 10
	maxProfiles = 500
)

// Next returns the profiles to publish after the last ones and the profiles that are asked for now. changed means that it
// differs from last.
func Next(last map[string]time.Time, asked []string, now time.Time) (next map[string]time.Time, changed bool) {
	next = maps.Clone(last)
	if next == nil {
		next = map[string]time.Time{}
	}
	for _, profile := range asked {
		// A time in the future is from a clock that was wrong.
		if since, known := next[profile]; known && now.Sub(since) < Renew && !since.After(now) || len(next) >= maxProfiles && !known {
			continue
		}
		next[profile] = now
	}
	maps.DeleteFunc(next, func(_ string, since time.Time) bool { return now.Sub(since) >= Keep+Renew || since.After(now) })
	return next, !maps.EqualFunc(last, next, time.Time.Equal)
}

// Encode returns the data of the ConfigMap.
func Encode(profiles map[string]time.Time) map[string]string {
	times := map[string]string{}
	for profile, since := range profiles {
		times[profile] = since.UTC().Format(time.RFC3339)
	}
	text, _ := json.Marshal(times) // Strings always encode, and encoding/json sorts keys.
	return map[string]string{Key: string(text)}
}

// Decode is the inverse of Encode, to the second.
func Decode(data map[string]string) (map[string]time.Time, error) {
	text, ok := data[Key]
	if !ok {
		return nil, fmt.Errorf("the key %s is missing", Key)
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s has %d bytes, but the limit is %d", Key, len(text), maxBytes)
	}
	var times map[string]string
	if err := json.Unmarshal([]byte(text), &times); err != nil || times == nil {
		return nil, fmt.Errorf("%s is not a JSON object of times", Key)
	}
	if len(times) > maxProfiles {
		return nil, fmt.Errorf("%s has %d profiles, but the limit is %d", Key, len(times), maxProfiles)
	}
	out := map[string]time.Time{}
	for profile, since := range times {
		at, err := time.Parse(time.RFC3339, since)
		switch {
		case !gpu.ValidProfile(profile):
			return nil, fmt.Errorf("%s: %.50q is not a MIG profile", Key, profile)
		case err != nil, at.UTC().Year() < 1, at.UTC().Year() > 9999:
			return nil, fmt.Errorf("%s.%s: %.50q is not a time such as 2026-01-31T12:00:00Z", Key, profile, since)
		}
		out[profile] = at
	}
	return out, nil
}
