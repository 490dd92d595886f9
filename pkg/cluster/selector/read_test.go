// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func ours(id string) Name { return Name{Domain: "gpu.nvidia.com", ID: id} }

func TestRead_Expression_FindsDriverNamesAndValues(t *testing.T) {
	var none Reading
	with := func(change func(*Reading)) Reading {
		r := Reading{Required: map[Name][]string{}}
		change(&r)
		return r
	}
	driver := Name{ID: "driver"}
	for expression, want := range map[string]Reading{
		`true`: none,
		`device.driver == "gpu.nvidia.com"`: with(func(r *Reading) {
			r.Driver, r.Required[driver] = "gpu.nvidia.com", []string{"gpu.nvidia.com"}
		}),
		`'other.com' == device.driver && 1>0`: with(func(r *Reading) {
			r.Driver, r.Required[driver] = "other.com", []string{"other.com"}
		}),
		`device.driver == "a.com" || device.driver == "b.com"`: with(func(r *Reading) { r.Required[driver] = []string{"a.com", "b.com"} }),
		`device.driver == "a.com" || true`:                     none,
		`!(device.driver == "a.com")`:                          none,
		`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`: with(func(r *Reading) {
			r.Driver, r.Required[driver], r.Required[ours("type")] = "gpu.nvidia.com", []string{"gpu.nvidia.com"}, []string{"mig"}
			r.Names, r.Comparisons = []Name{ours("type")}, []Comparison{{ours("type"), "mig"}}
		}),
		`device.attributes["gpu.nvidia.com"]["profile"] in ["1g.10gb", "2g.20gb"]`: with(func(r *Reading) {
			r.Names, r.Comparisons = []Name{ours("profile")}, []Comparison{{ours("profile"), "1g.10gb"}, {ours("profile"), "2g.20gb"}}
			r.Required[ours("profile")] = []string{"1g.10gb", "2g.20gb"}
		}),
		`device.attributes["gpu.nvidia.com"].profile in ["1g.10gb", device.driver]`: with(func(r *Reading) {
			r.Names, r.Comparisons = []Name{ours("profile")}, []Comparison{{ours("profile"), "1g.10gb"}}
		}),
		`device.attributes["gpu.nvidia.com"].profile == "1g.10gb" || device.attributes["gpu.nvidia.com"].profile in ["2g.20gb"]`: with(func(r *Reading) {
			r.Names = []Name{ours("profile"), ours("profile")}
			r.Comparisons = []Comparison{{ours("profile"), "1g.10gb"}, {ours("profile"), "2g.20gb"}}
			r.Required[ours("profile")] = []string{"1g.10gb", "2g.20gb"}
		}),
		`has(device.attributes["gpu.nvidia.com"].nvlinkGroup)`: with(func(r *Reading) { r.Names = []Name{ours("nvlinkGroup")} }),
		`device.attributes["gpu.nvidia.com"].gpuCount == 4`: with(func(r *Reading) {
			r.Names = []Name{ours("gpuCount")}
		}),
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`: with(func(r *Reading) {
			r.Names = []Name{{Domain: "gpu.nvidia.com", ID: "memory", Capacity: true}}
		}),
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("h100")`: with(func(r *Reading) { r.Names, r.PatternSize = []Name{ours("productName")}, 4 }),
		`cel.bind(a, device.attributes["gpu.nvidia.com"], a.type == "gpu")`:            none,
		`device.allowMultipleAllocations`:                                              none,
	} {
		got, err := Read(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Reading{}, "Complete")); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", expression, diff)
		}
	}
}

func TestRead_OtherPartsOfDevice_IsIncomplete(t *testing.T) {
	for expression, want := range map[string]bool{
		`true`:                              true,
		`device.driver == "gpu.nvidia.com"`: true,
		`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`:         true,
		`has(device.attributes["gpu.nvidia.com"].profile)`:                                               true,
		`device.attributes[?"gpu.nvidia.com"].?profile.orValue("") == "1g.10gb"`:                         true,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`:                      true,
		`[1, 2].exists(n, device.attributes["gpu.nvidia.com"].index == n)`:                               true,
		`device.allowMultipleAllocations`:                                                                false,
		`"gpu.nvidia.com" in device.attributes`:                                                          false,
		`device.attributes["gpu.nvidia.com"].exists(n, n == "type")`:                                     false,
		`cel.bind(a, device.attributes["gpu.nvidia.com"], a.type == "gpu")`:                              false,
		`device.attributes[device.driver].type == "gpu"`:                                                 false,
		`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"]["ty" + "pe"] == "mig"`: false,
	} {
		got, err := Read(expression)
		if err != nil || got.Complete != want {
			t.Errorf("%s: complete %v, %v; want %v", expression, got.Complete, err, want)
		}
	}
}

func TestRead_InvalidExpression_ReturnsError(t *testing.T) {
	for _, expression := range []string{"", "device.", "(((", strings.Repeat("(", 5000), strings.Repeat(" ", maxBytes+1)} {
		if _, err := Read(expression); err == nil {
			t.Errorf("%.20q is read", expression)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`device.attributes["gpu.nvidia.com"].type == "gpu"`)
	f.Add(`device.attributes[?"a"].?b in [1, "x"]`)
	f.Add(`device[0][1].x == in`)
	f.Fuzz(func(t *testing.T, expression string) {
		r, err := Read(expression)
		if err == nil && len(r.Names) > len(expression) {
			t.Errorf("%q names %d things", expression, len(r.Names))
		}
	})
}

func TestRead_RegularExpressions_CountsRepetitions(t *testing.T) {
	for expression, atLeast := range map[string]int{
		`"x".matches("(a{9}){99}")`: 891, `"x".find("(a{9}){99}") == ""`: 891, `"x".findAll("a{500}").size() == 0 && "x".matches("b{500}")`: 1000,
		`matches("x", "a{500}")`: 500, `"x".matches("(a{2,}){99}")`: 198, `"x".matches("[^b]{1,500}")`: 500,
	} {
		if r, err := Read(expression); err != nil || r.PatternSize < atLeast || r.PatternSize > 5*atLeast {
			t.Errorf("%s: %d, %v, want %d", expression, r.PatternSize, err, atLeast)
		}
	}
	for _, expression := range []string{`"x".matches(device.driver)`, `"x".matches("a{1001}")`, `"x".contains("(a{9}){99}")`, `"x".find()`} {
		if r, err := Read(expression); err != nil || r.PatternSize != 0 {
			t.Errorf("%s: %d, %v", expression, r.PatternSize, err)
		}
	}
}
