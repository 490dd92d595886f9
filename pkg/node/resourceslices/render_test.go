// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// object is a decoded JSON object.
type object = map[string]any

// tree is v as JSON has it, so that no field of the API is forgotten.
func tree(v any) any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

// flow renders a value on one line. Lists of objects with the same fields become one list for each field.
func flow(v any) string {
	switch v := v.(type) {
	case object:
		var out []string
		for _, key := range sortedKeys(v) {
			out = append(out, quoted(key)+" "+flow(v[key]))
		}
		return "{" + strings.Join(out, ", ") + "}"
	case []any:
		if columns, ok := transposed(v); ok {
			return "list" + flow(columns)
		}
		var out []string
		for i := 0; i < len(v); {
			text, n := flow(v[i]), 1
			for i+n < len(v) && flow(v[i+n]) == text {
				n++
			}
			if i += n; n > 1 {
				text += "×" + strconv.Itoa(n)
			}
			out = append(out, text)
		}
		return "[" + strings.Join(out, " ") + "]"
	case string:
		return quoted(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// transposed makes one list a field of objects that all have the same fields.
func transposed(list []any) (object, bool) {
	out := object{}
	for i, v := range list {
		o, ok := v.(object)
		if !ok || len(o) == 0 || i > 0 && len(o) != len(out) {
			return nil, false
		}
		for key, value := range o {
			column, _ := out[key].([]any)
			if len(column) != i {
				return nil, false
			}
			out[key] = append(column, value)
		}
	}
	return out, len(list) > 1
}

// plain strings are rendered without quotes: nothing that could be read as another value or as the end of one.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9./:_+-]*$|^[0-9]+[KMGT]i$|^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]$`)

func quoted(s string) string {
	if plain.MatchString(s) && s != "true" && s != "false" && s != "null" {
		return s
	}
	return strconv.Quote(s)
}

// field is one field of a device, under the column that it is shown in.
type field struct{ column, name string }

// entry is a device as rendered: the text of each of its fields.
type entry struct {
	name   string
	fields map[field]string
}

// columns are in the order in which they are shown.
var columns = []string{"counters", "capacity", "attributes", "taints", "other"}

func newEntry(device object) entry {
	out := entry{name: fmt.Sprint(device["name"]), fields: map[field]string{}}
	for key, value := range device {
		switch value := value.(type) {
		case object:
			if key != "attributes" && key != "capacity" {
				out.fields[field{"other", key}] = flow(value)
				continue
			}
			for name, v := range value {
				text := attributeText(v.(object))
				if key == "capacity" {
					text = capacityText(v.(object))
				}
				out.fields[field{key, name}] = text
			}
		default:
			switch key {
			case "name":
			case "consumesCounters":
				out.fields[field{"counters", ""}] = counters(value.([]any))
			case "taints":
				out.fields[field{"taints", ""}] = flow(value)
			default:
				out.fields[field{"other", key}] = flow(value)
			}
		}
	}
	return out
}

// attributeText renders a value so that it shows its type.
func attributeText(v object) string {
	for kind, value := range v {
		switch {
		case len(v) > 1:
		case kind == "string":
			return strconv.Quote(value.(string))
		case kind == "version":
			return "v" + strconv.Quote(value.(string))
		case kind == "int" || kind == "bool":
			return flow(value)
		}
	}
	return flow(v)
}

func capacityText(v object) string {
	value, ok := v["value"].(string)
	rest := maps.Clone(v)
	delete(rest, "value")
	switch {
	case !ok:
		return flow(v)
	case len(rest) == 0:
		return number(flow(value))
	}
	policy, ok := rest["requestPolicy"]
	if !ok || len(rest) > 1 {
		return flow(v)
	}
	return number(flow(value) + " " + flow(policy))
}

var quotedNumber = regexp.MustCompile(`"([0-9]+)"`)

// number leaves the quotes off numbers, where every value is a quantity.
func number(text string) string { return quotedNumber.ReplaceAllString(text, "$1") }

// counters renders what a device takes, or the sets of a slice: each set with its counters, numbered ones together.
func counters(sets []any) string {
	var out []string
	for _, set := range sets {
		rest := maps.Clone(set.(object))
		name, _ := rest["counterSet"].(string)
		if name == "" {
			name, _ = rest["name"].(string)
			delete(rest, "name")
		}
		values, _ := rest["counters"].(object)
		delete(rest, "counterSet")
		delete(rest, "counters")
		text := quoted(name) + "{" + strings.Join(ranges(values), " ") + "}"
		if len(rest) > 0 {
			text += flow(rest)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

var numbered = regexp.MustCompile(`^([a-z-]+-)(0|[1-9][0-9]*)$`)

// ranges renders counters by name; equal ones with consecutive numbers are one: memory-slice-0..3=1.
func ranges(values object) []string {
	names := sortedKeys(values)
	slices.SortStableFunc(names, func(a, b string) int { // slice-2 before slice-10
		x, y := numbered.FindStringSubmatch(a), numbered.FindStringSubmatch(b)
		if x == nil || y == nil || x[1] != y[1] {
			return strings.Compare(a, b)
		}
		m, _ := strconv.Atoi(x[2])
		n, _ := strconv.Atoi(y[2])
		return m - n
	})
	var out []string
	for i := 0; i < len(names); {
		text, n := flow(values[names[i]].(object)["value"]), 1
		if o := values[names[i]].(object); len(o) != 1 {
			text = flow(o)
		}
		name := quoted(names[i])
		if parts := numbered.FindStringSubmatch(names[i]); parts != nil {
			from, _ := strconv.Atoi(parts[2])
			for i+n < len(names) && names[i+n] == parts[1]+strconv.Itoa(from+n) && flow(values[names[i+n]]) == flow(values[names[i]]) {
				n++
			}
			if n > 1 {
				name = fmt.Sprintf("%s..%d", name, from+n-1)
			}
		}
		out = append(out, number(name+"="+text))
		i += n
	}
	return out
}

// groups are the sets of devices for which common fields are stated once: of a kind, of a profile, of a kind and a GPU.
func (e entry) groups() []string {
	d, err := gpu.ParseName(e.name)
	if err != nil {
		return nil
	}
	out := []string{string(d.Kind)}
	if d.Kind == gpu.KindMIG {
		out = append(out, "mig of profile "+d.Profile, "mig of GPU "+d.PCIAddress)
	}
	return out
}

func rank(group string) int {
	switch {
	case strings.Contains(group, " of profile "):
		return 2
	case strings.Contains(group, " of GPU "):
		return 1
	}
	return 0
}

// show renders the fields, or those of one column.
func show(fields map[field]string, column string) string {
	var out []string
	for _, f := range slices.SortedFunc(maps.Keys(fields), func(a, b field) int { return strings.Compare(a.name, b.name) }) {
		switch {
		case f.column != column:
		case f.name == "":
			out = append(out, fields[f])
		default:
			out = append(out, quoted(f.name)+"="+fields[f])
		}
	}
	return strings.Join(out, "  ")
}

// renderPool renders a pool as text: each field that all devices of a group have alike once, then slice by slice a line for
// each device with its other fields. Another pool has another text.
func renderPool(pool object) string {
	var entries []entry
	members := map[string][]entry{}
	var order []string
	list, _ := pool["Slices"].([]any)
	for _, slice := range list {
		devices, _ := slice.(object)["devices"].([]any)
		for _, d := range devices {
			e := newEntry(d.(object))
			entries = append(entries, e)
			for _, g := range e.groups() {
				if members[g] == nil {
					order = append(order, g)
				}
				members[g] = append(members[g], e)
			}
		}
	}
	var b strings.Builder
	// Kinds come before their GPUs, and those before their profiles.
	slices.SortStableFunc(order, func(a, b string) int { return rank(a) - rank(b) })
	for _, g := range order {
		common := maps.Clone(members[g][0].fields)
		for _, e := range members[g][1:] {
			maps.DeleteFunc(common, func(f field, text string) bool { return e.fields[f] != text })
		}
		if len(common) == 0 || len(members[g]) == 1 && rank(g) > 0 {
			continue
		}
		fmt.Fprintf(&b, "each %s (%d):\n", g, len(members[g]))
		for _, column := range columns {
			if text := show(common, column); text != "" {
				fmt.Fprintf(&b, "  %s: %s\n", column, wrap(text))
			}
		}
		for _, e := range members[g] {
			for f := range common {
				delete(e.fields, f)
			}
		}
	}
	for n, slice := range list {
		name := flow(pool["Name"])
		if devices, _ := slice.(object)["devices"].([]any); len(devices) > 0 && strings.HasPrefix(fmt.Sprint(devices[0].(object)["name"]), "monitor-") {
			name = strings.Replace(name, "/gpu", "/monitor", 1)
		}
		fmt.Fprintf(&b, "slice %d of %s:\n", n, name)
		rest := maps.Clone(slice.(object))
		devices, _ := rest["devices"].([]any)
		for range devices {
			b.WriteString("  " + quoted(entries[0].name))
			for _, column := range columns {
				if text := show(entries[0].fields, column); text != "" {
					b.WriteString(" | " + column + ": " + text)
				}
			}
			b.WriteString("\n")
			entries = entries[1:]
		}
		sets, _ := rest["sharedCounters"].([]any)
		for _, set := range sets {
			b.WriteString("  set " + counters([]any{set}) + "\n")
		}
		delete(rest, "devices")
		delete(rest, "sharedCounters")
		if len(rest) > 0 {
			b.WriteString("  other: " + flow(rest) + "\n")
		}
	}
	return b.String()
}

// wrap breaks a line between fields.
func wrap(text string) string {
	line := 0
	var b strings.Builder
	for i, word := range strings.Split(text, "  ") {
		switch {
		case i == 0:
		case line+len(word) > 120:
			b.WriteString("\n    ")
			line = 0
		default:
			b.WriteString("  ")
		}
		b.WriteString(word)
		line += len(word) + 2
	}
	return b.String()
}

// renderSnapshot renders a Snapshot: each field that all GPUs have alike once, then the others of each GPU.
func renderSnapshot(snapshot object) string {
	var b strings.Builder
	list, _ := snapshot["gpus"].([]any)
	common := object{}
	if len(list) > 0 {
		common = maps.Clone(list[0].(object))
	}
	for _, g := range list {
		maps.DeleteFunc(common, func(key string, v any) bool {
			other, ok := g.(object)[key]
			return !ok || flow(other) != flow(v)
		})
	}
	b.WriteString("each GPU:\n" + outline("  ", common))
	for n, g := range list {
		own := maps.Clone(g.(object))
		for key := range common {
			delete(own, key)
		}
		fmt.Fprintf(&b, "GPU %d: %s\n", n, flow(own))
	}
	rest := maps.Clone(snapshot)
	delete(rest, "gpus")
	return outline("", rest) + b.String()
}

// outline renders an object with one field a line, and what is too long for a line with one element a line.
func outline(indent string, o object) string {
	var b strings.Builder
	for _, key := range sortedKeys(o) {
		text := flow(o[key])
		switch v := o[key].(type) {
		case object:
			if len(text) > 110 {
				b.WriteString(indent + quoted(key) + ":\n" + outline(indent+"  ", v))
				continue
			}
		case []any:
			if len(text) > 110 {
				b.WriteString(indent + quoted(key) + ":\n")
				for _, one := range v {
					b.WriteString(indent + "- " + flow(one) + "\n")
				}
				continue
			}
		}
		b.WriteString(indent + quoted(key) + ": " + text + "\n")
	}
	return b.String()
}

func sortedKeys(o object) []string { return slices.Sorted(maps.Keys(o)) }
