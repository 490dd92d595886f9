// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	tableBegin = "<!-- values: generated from values.yaml by make generate -->\n"
	tableEnd   = "<!-- end of values -->\n"
)

// writeReadme replaces the table between the two marks of CHART/README.md.
func writeReadme(chart string) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	file := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	table, err := valuesTable(values)
	if err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	before, rest, ok := bytes.Cut(readme, []byte(tableBegin))
	_, after, ok2 := bytes.Cut(rest, []byte(tableEnd))
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %q and %q", file, tableBegin, tableEnd)
	}
	out := string(before) + tableBegin + "\n" + table + "\n" + tableEnd + string(after)
	return os.WriteFile(file, []byte(out), 0o644)
}

// valuesTable renders the documented values as a Markdown table.
func valuesTable(values []byte) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return "", err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return "", errors.New("not a mapping")
	}
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n| --- | --- | --- |\n")
	if err := rows(&b, "", doc.Content[0]); err != nil {
		return "", err
	}
	return b.String(), nil
}

// rows writes one row for each documented key of a mapping and descends into the mappings without a comment of their
// own.
func rows(b *strings.Builder, prefix string, mapping *yaml.Node) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		meaning, def := documentation(key.HeadComment)
		switch {
		case meaning != "":
			if def == "" {
				rendered, err := flow(value)
				if err != nil {
					return err
				}
				def = "`" + rendered + "`"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, strings.ReplaceAll(def, "|", `\|`), strings.ReplaceAll(meaning, "|", `\|`))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			if err := rows(b, name+".", value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("line %d: %s has no comment that begins with \"# --\"", key.Line, name)
		}
	}
	return nil
}

func documentation(comment string) (meaning, def string) {
	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if text, ok := strings.CutPrefix(line, "@default -- "); ok {
			def = text
		} else if text, ok := strings.CutPrefix(line, "-- "); ok {
			meaning = text
		}
	}
	return meaning, def
}

// flow renders a value on one line.
func flow(value *yaml.Node) (string, error) {
	inline := *value
	if inline.Kind != yaml.ScalarNode {
		inline.Style = yaml.FlowStyle
	}
	inline.HeadComment, inline.LineComment, inline.FootComment = "", "", ""
	out, err := yaml.Marshal(&inline)
	return strings.TrimSpace(string(out)), err
}
