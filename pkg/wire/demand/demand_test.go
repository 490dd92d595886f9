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
	var last State
	writes := 0
	for minute := range 200 {
		var asked []string
		if minute < 25 {
			asked = append(asked, "1g.10gb")
		}
		if minute < 100 || minute >= 150 {
			asked = append(asked, Groups)
		}
		next, changed := Next(last, asked, State{Nodes: 3}, start.Add(time.Duration(minute)*time.Minute))
		if changed {
			writes++
		}
		last = next
		_, small := last.Since["1g.10gb"]
		if _, always := last.Since[Groups]; !always {
			t.Errorf("minute %d: groups were asked for within the hour, and are gone", minute)
		}
		// It was last asked for in minute 24.
		if minute <= 24+60 && !small || minute > 24+71 && small {
			t.Errorf("minute %d: published %v", minute, small)
		}
		if age := start.Add(time.Duration(minute) * time.Minute).Sub(last.Written); age >= Beat || last.Nodes != 3 {
			t.Errorf("minute %d: written %s ago for %d nodes", minute, age, last.Nodes)
		}
	}
	if writes < 67 || writes > 90 {
		t.Errorf("%d writes in 200 minutes, want one in three and a few more", writes)
	}
}

func TestNext_TimeInTheFuture_IsReplaced(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	later := now.Add(time.Hour)
	next, changed := Next(State{Since: map[string]time.Time{"1g.10gb": later, "2g.20gb": later}, Written: later}, []string{"1g.10gb"}, State{Nodes: 1}, now)
	if want := map[string]time.Time{"1g.10gb": now}; !changed || !maps.Equal(next.Since, want) || next.Written != now {
		t.Errorf("%v, %v", next, changed)
	}
	if _, changed := Next(next, nil, State{Nodes: 2}, now.Add(time.Second)); changed {
		t.Error("a node more is a reason to write")
	}
}

func TestDecode_BadContent_ReturnsError(t *testing.T) {
	many := map[string]time.Time{}
	for i := range maxProfiles + 1 {
		many[fmt.Sprintf("1g.%dgb", i+1)] = time.Now()
	}
	for text, want := range map[string]string{
		"": "JSON", "null": "JSON", "[]": "JSON", `{"1g.10gb": 1}`: "JSON", `{"1g.10gb": "soon"}`: "time", `{"gpu": "2026-01-31T12:00:00Z"}`: "profile",
		strings.Repeat(" ", maxBytes+1): "bytes", Encode(State{Since: many})[Key]: "profiles", `{"nvlink": "2026-01-31T12:00:00Z"}`: "profile",
	} {
		if _, err := Decode(map[string]string{Key: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
	if _, err := Decode(nil); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Error(err)
	}
	for key, bad := range map[string]string{groupsKey: "all", monitorsKey: "no", writtenKey: "today", nodesKey: "-1", samplesKey: `{"n1": true}`, servingKey: `["n1"]`} {
		data := Encode(State{Since: map[string]time.Time{Groups: time.Now()}, Written: time.Now()})
		data[key] = bad
		if _, err := Decode(data); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestDecode_EarlierVersion_UnknownKindsAreAskedFor has ConfigMaps of controllers that know neither groups nor monitor
// devices, or groups alone.
func TestDecode_EarlierVersion_UnknownKindsAreAskedFor(t *testing.T) {
	const profiles = `{"1g.10gb": "2026-01-31T12:00:00Z"}`
	for _, c := range []struct {
		data map[string]string
		want []string
	}{
		{map[string]string{Key: profiles}, []string{"1g.10gb", Monitors, Groups, Shares}},
		{map[string]string{Key: profiles, writtenKey: "2026-01-31T12:00:00Z", nodesKey: "1"}, []string{"1g.10gb", Monitors, Shares}},
		{map[string]string{Key: profiles, writtenKey: "2026-01-31T12:00:00Z", nodesKey: "1", monitorsKey: never}, []string{"1g.10gb", Shares}},
		{map[string]string{Key: profiles, writtenKey: "2026-01-31T12:00:00Z", nodesKey: "1", monitorsKey: never, sharesKey: never}, []string{"1g.10gb"}},
	} {
		got, err := Decode(c.data)
		if asked := slices.Sorted(maps.Keys(got.Since)); err != nil || !slices.Equal(asked, c.want) {
			t.Errorf("%v: %v asked for, %v, want %v", c.data, asked, err, c.want)
		}
		if next, _ := Next(got, nil, State{Nodes: 1}, time.Date(2026, 1, 31, 12, 1, 0, 0, time.UTC)); len(next.Since) != 1 {
			t.Errorf("%v, want the profile", next.Since)
		}
	}
}

func TestNext_SampleNodes_AreWrittenWhenTheyChange(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	last := State{Since: map[string]time.Time{}, Written: now}
	for _, c := range []struct {
		samples []string
		changed bool
	}{{[]string{}, true}, {[]string{}, false}, {[]string{"n2"}, true}, {[]string{"n2"}, false}, {[]string{"n1", "n2"}, true}, {nil, true}, {nil, false}} {
		next, changed := Next(last, nil, State{Nodes: 2, Samples: c.samples}, now)
		read, err := Decode(Encode(next))
		if err != nil || changed != c.changed || !slices.Equal(read.Samples, c.samples) || (read.Samples == nil) != (c.samples == nil) {
			t.Errorf("%v: changed %v, read %#v, %v", c.samples, changed, read.Samples, err)
		}
		last = next
	}
}

func TestDecode_TooManySampleNodes_ReturnsError(t *testing.T) {
	s := State{Since: map[string]time.Time{}, Written: time.Now()}
	for i := range MaxSamples {
		s.Samples = append(s.Samples, fmt.Sprintf("%0253d", i))
	}
	if got, err := Decode(Encode(s)); err != nil || len(got.Samples) != MaxSamples {
		t.Errorf("%d nodes with the longest names: %v", MaxSamples, err)
	}
	s.Samples = append(s.Samples, "one-more")
	if _, err := Decode(Encode(s)); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Error(err)
	}
}

func TestNext_ServingNodes_AreWrittenWhenTheyChangeAndBounded(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	last := State{Since: map[string]time.Time{"1g.10gb": now, Groups: now}, Written: now}
	nodes := func(n, length int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("%0*d", length, i))
		}
		return out
	}
	for _, c := range []struct {
		name    string
		serving map[string][]string
		want    []string
		changed bool
	}{
		{"none", map[string][]string{}, nil, false},
		{"one", map[string][]string{"1g.10gb": {"n1"}}, []string{"1g.10gb"}, true},
		{"the same", map[string][]string{"1g.10gb": {"n1"}}, []string{"1g.10gb"}, false},
		{"no node", map[string][]string{"1g.10gb": {}}, []string{"1g.10gb"}, true},
		{"groups too", map[string][]string{"1g.10gb": {}, Groups: {"n2"}}, []string{"1g.10gb", Groups}, true},
		{"what is not published", map[string][]string{"1g.10gb": {}, Groups: {"n2"}, "2g.20gb": {"n1"}}, []string{"1g.10gb", Groups}, false},
		{"the most", map[string][]string{"1g.10gb": nodes(MaxServing, 63)}, []string{"1g.10gb"}, true},
		{"too many", map[string][]string{"1g.10gb": nodes(MaxServing+1, 63), Groups: {"n2"}}, []string{Groups}, true},
		{"too long", map[string][]string{"1g.10gb": nodes(MaxServing, 253), Groups: nodes(MaxServing-1, 253)}, []string{Groups}, true},
	} {
		next, changed := Next(last, nil, State{Nodes: 2, Serving: c.serving}, now)
		read, err := Decode(Encode(next))
		if got := slices.Sorted(maps.Keys(read.Serving)); err != nil || changed != c.changed || !slices.Equal(got, c.want) ||
			!maps.EqualFunc(read.Serving, next.Serving, slices.Equal) {
			t.Errorf("%s: changed %v, serving nodes of %q, %v, want %v and %q", c.name, changed, got, err, c.changed, c.want)
		}
		last = next
	}
}

func TestOffersOf_ServingNodesAndGPUs_OthersPublishTheRest(t *testing.T) {
	s := State{
		Since:   map[string]time.Time{"1g.10gb": {}, "2g.20gb": {}, Groups: {}, Monitors: {}},
		Serving: map[string][]string{"1g.10gb": {"n1", "n2"}, Groups: {"n2"}},
		Samples: []string{"n1", "n3"},
		GPUs:    map[string][]string{"n2": {"a"}, "n3": {}},
	}
	for node, want := range map[string][]Offer{
		"n1": {{"1g.10gb", ""}, {"2g.20gb", ""}, {Monitors, ""}, {Samples, ""}},
		"n2": {{"1g.10gb", "a"}, {"1g.10gb", InMIGMode}, {"2g.20gb", ""}, {Groups, ""}, {Monitors, ""}},
		"n3": {{"2g.20gb", ""}, {Monitors, ""}, {Samples, InMIGMode}},
		"n4": {{"2g.20gb", ""}, {Monitors, ""}},
	} {
		got := s.OffersOf(node)
		for _, o := range want {
			if !got[o] {
				t.Errorf("%s does not publish %v", node, o)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s publishes %v, want %v", node, got, want)
		}
	}
	if len(s.Since) != 4 {
		t.Error("the state has changed")
	}
}

func TestNext_GPUs_AreWrittenWhenTheyChangeAndBounded(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	last := State{Since: map[string]time.Time{}, Written: now}
	many := map[string][]string{}
	for i := range 1000 {
		many[fmt.Sprintf("node-%d", i)] = slices.Repeat([]string{"0000:1b:00.0"}, 9)
	}
	for _, c := range []struct {
		name string
		gpus map[string][]string
		want int
	}{
		{"one", map[string][]string{"n1": {"a"}}, 1}, {"none of a node", map[string][]string{"n1": {}}, 1}, {"too long", many, 880},
	} {
		next, changed := Next(last, nil, State{GPUs: c.gpus}, now)
		read, err := Decode(Encode(next))
		if err != nil || !changed || len(read.GPUs) != c.want || !maps.EqualFunc(read.GPUs, next.GPUs, slices.Equal) {
			t.Errorf("%s: changed %v, %d nodes, %v", c.name, changed, len(read.GPUs), err)
		}
		last = next
		if _, changed := Next(last, nil, State{GPUs: c.gpus}, now); changed {
			t.Errorf("%s: the same GPUs are a reason to write", c.name)
		}
	}
}

func TestDecode_BadGPUs_ReturnsError(t *testing.T) {
	many := `{"n1": ["a"` + strings.Repeat(`,"a"`, maxGPUs) + `]}`
	for _, text := range []string{"", "null", `["n1"]`, `{"n1": "a"}`, many, strings.Repeat(" ", 2*maxServing+1)} {
		data := Encode(State{Since: map[string]time.Time{}, Written: time.Now()})
		data[gpusKey] = text
		if _, err := Decode(data); err == nil || !strings.Contains(err.Error(), gpusKey) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}

func TestDecode_BadServingNodes_ReturnsError(t *testing.T) {
	for _, text := range []string{"", "null", `{"1g.10gb": "n1"}`, `{"monitor": ["n1"]}`, `{"gpu": []}`, strings.Repeat(" ", 2*maxServing+1)} {
		data := Encode(State{Since: map[string]time.Time{}, Written: time.Now()})
		data[servingKey] = text
		if _, err := Decode(data); err == nil || !strings.Contains(err.Error(), servingKey) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	full := Encode(State{
		Since: map[string]time.Time{"1g.10gb": time.Unix(1e9, 0), "1g.10gb+me": time.Unix(2e9, 0), Groups: time.Unix(1e9, 0), Monitors: time.Unix(2e9, 0), Shares: time.Unix(1e9, 0)},
		Nodes: 9, Samples: []string{"n1"}, Serving: map[string][]string{"1g.10gb": {"n1"}, Groups: {}, Shares: {"n2"}},
		GPUs: map[string][]string{"n1": {"0000:1b:00.0"}, "n2": {}},
	})
	f.Add(full[Key], full[groupsKey], full[monitorsKey], full[writtenKey], full[nodesKey], full[samplesKey], full[servingKey], full[sharesKey], full[gpusKey])
	f.Add(`{}`, "", "", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, profiles, groups, monitors, written, nodes, samples, serving, shares, gpus string) {
		data := map[string]string{Key: profiles, groupsKey: groups, monitorsKey: monitors, sharesKey: shares, writtenKey: written, nodesKey: nodes, samplesKey: samples, servingKey: serving, gpusKey: gpus}
		maps.DeleteFunc(data, func(_, value string) bool { return value == "" })
		is, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Decode(Encode(is))
		same := func(a, b time.Time) bool { return a.Truncate(time.Second).Equal(b) }
		if err != nil || !maps.EqualFunc(is.Since, again.Since, same) || !same(is.Written, again.Written) || is.Nodes != again.Nodes || !slices.Equal(is.Samples, again.Samples) ||
			!maps.EqualFunc(is.Serving, again.Serving, slices.Equal) || !maps.EqualFunc(is.GPUs, again.GPUs, slices.Equal) {
			t.Errorf("%q: %v became %v (%v)", data, is, again, err)
		}
		if slices.Contains(slices.Collect(maps.Keys(is.Since)), "") {
			t.Errorf("%q has a profile without a name", profiles)
		}
	})
}
