// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// schema is a JSON schema, or an OpenAPI document that contains some.
type schema = map[string]any

const refPrefix = "#/components/schemas/"

// writeSchemas writes a self-contained schema for each kind, under the file name of kubeconform's pattern
// {{.ResourceKind}}{{.KindSuffix}}.json.
func writeSchemas(specs, out string, kinds []string) error {
	for _, k := range kinds {
		part := strings.Split(k, "/")
		if len(part) != 3 {
			return fmt.Errorf("%q is not group/version/Kind", k)
		}
		group, version, kind := part[0], part[1], part[2]
		file := fmt.Sprintf("apis__%s__%s_openapi.json", group, version)
		suffix := "-" + strings.Split(group, ".")[0] + "-" + version
		if group == "core" {
			group, file, suffix = "", fmt.Sprintf("api__%s_openapi.json", version), "-"+version
		}
		data, err := os.ReadFile(filepath.Join(specs, file))
		if err != nil {
			return err
		}
		var doc schema
		if err := json.Unmarshal(data, &doc); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		standalone, err := kindSchema(doc, group, version, kind)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", kind, file, err)
		}
		rendered, err := json.Marshal(standalone)
		if err != nil {
			return err
		}
		name := strings.ToLower(kind) + suffix + ".json"
		if err := os.WriteFile(filepath.Join(out, name), append(rendered, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// kindSchema extracts the schema of a kind from an OpenAPI document, with the schemas that it refers to.
func kindSchema(doc schema, group, version, kind string) (schema, error) {
	components, _ := doc["components"].(schema)
	all, _ := components["schemas"].(schema)
	root := ""
	for name, s := range all {
		gvks, _ := s.(schema)["x-kubernetes-group-version-kind"].([]any)
		for _, g := range gvks {
			if gvk, _ := g.(schema); gvk["group"] == group && gvk["version"] == version && gvk["kind"] == kind && len(gvks) == 1 {
				root = name
			}
		}
	}
	if root == "" {
		return nil, errors.New("the document has no such kind")
	}
	definitions := schema{}
	queue := []string{root}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if _, done := definitions[name]; done {
			continue
		}
		s, ok := all[name].(schema)
		if !ok {
			return nil, fmt.Errorf("%s is referred to and not there", name)
		}
		definitions[name] = strict(s, &queue)
	}
	return schema{
		"$schema":     "http://json-schema.org/draft-07/schema#",
		"$ref":        "#/definitions/" + root,
		"definitions": definitions,
	}, nil
}

// strict renders one schema for validation: no prose, no extensions, no undeclared fields. It adds the names of
// referenced schemas to the queue.
func strict(s schema, queue *[]string) any {
	if s["x-kubernetes-int-or-string"] == true || s["format"] == "int-or-string" {
		return schema{"type": []any{"integer", "string"}}
	}
	out := schema{}
	for key, value := range s {
		switch key {
		case "description", "default", "title", "format":
		case "$ref":
			name := strings.TrimPrefix(value.(string), refPrefix)
			*queue = append(*queue, name)
			out[key] = "#/definitions/" + name
		case "properties":
			properties := schema{}
			for name, p := range value.(schema) {
				properties[name] = strict(p.(schema), queue)
			}
			out[key] = properties
			out["additionalProperties"] = false
		case "items", "additionalProperties", "not":
			if inner, ok := value.(schema); ok {
				value = strict(inner, queue)
			}
			out[key] = value
		case "allOf", "oneOf", "anyOf":
			var inner []any
			for _, v := range value.([]any) {
				inner = append(inner, strict(v.(schema), queue))
			}
			out[key] = inner
		default:
			if !strings.HasPrefix(key, "x-kubernetes-") {
				out[key] = value
			}
		}
	}
	return out
}
