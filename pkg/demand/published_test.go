// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNext_ProfileNoLongerAskedFor_StaysForAnHour(t *testing.T) {
	start := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	var last map[string]time.Time
	writes := 0
	for minute := range 200 {
		var asked []string
		if minute < 25 {
			asked = append(asked, "1g.10gb")
		}
		if minute < 100 || minute >= 150 {
			asked = append(asked, "2g.20gb")
		}
		next, changed := Next(last, asked, start.Add(time.Duration(minute)*time.Minute))
		if changed {
			writes++
		}
		last = next
		_, small := last["1g.10gb"]
		if _, always := last["2g.20gb"]; !always {
			t.Errorf("minute %d: a profile that was asked for within the hour is gone", minute)
		}
		// It was last asked for in minute 24.
		if minute <= 24+60 && !small || minute > 24+71 && small {
			t.Errorf("minute %d: published %v", minute, small)
		}
	}
	if writes < 15 || writes > 25 {
		t.Errorf("%d writes in 200 minutes, want about one in ten", writes)
	}
}

func TestNext_TimeInTheFuture_IsReplaced(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	next, changed := Next(map[string]time.Time{"1g.10gb": now.Add(time.Hour), "2g.20gb": now.Add(time.Hour)}, []string{"1g.10gb"}, now)
	if want := map[string]time.Time{"1g.10gb": now}; !changed || !maps.Equal(next, want) {
		t.Errorf("%v, %v", next, changed)
	}
}

func TestDecode_BadContent_ReturnsError(t *testing.T) {
	many := map[string]time.Time{}
	for i := range maxProfiles + 1 {
		many[fmt.Sprintf("1g.%dgb", i+1)] = time.Now()
	}
	for text, want := range map[string]string{
		"": "JSON", "null": "JSON", "[]": "JSON", `{"1g.10gb": 1}`: "JSON", `{"1g.10gb": "soon"}`: "time", `{"gpu": "2026-01-31T12:00:00Z"}`: "profile",
		strings.Repeat(" ", maxBytes+1): "bytes", Encode(many)[Key]: "profiles",
	} {
		if _, err := Decode(map[string]string{Key: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
	if _, err := Decode(nil); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(map[string]time.Time{"1g.10gb": time.Unix(1e9, 0), "1g.10gb+me": time.Unix(2e9, 0)})[Key])
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, text string) {
		profiles, err := Decode(map[string]string{Key: text})
		if err != nil {
			return
		}
		again, err := Decode(Encode(profiles))
		if err != nil || !maps.EqualFunc(profiles, again, func(a, b time.Time) bool { return a.Truncate(time.Second).Equal(b) }) {
			t.Errorf("%q: %v became %v (%v)", text, profiles, again, err)
		}
		if slices.Contains(slices.Collect(maps.Keys(profiles)), "") {
			t.Errorf("%q has a profile without a name", text)
		}
	})
}
