// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package formtest compares the types of files with files of earlier releases, which later releases must read.
package formtest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Update is set to write the goldens of the newest form again. Goldens of released forms never change.
var Update = flag.Bool("update", false, "write the goldens of the newest form again")

// Check fails the test if T ignores a key of the payloads, because its value would be lost. It also fails if T has a
// key that no payload has, because no golden shows how that is written.
func Check[T any](t testing.TB, payloads ...[]byte) {
	t.Helper()
	var values []any
	for _, payload := range payloads {
		strict := json.NewDecoder(bytes.NewReader(payload))
		strict.DisallowUnknownFields()
		if err := strict.Decode(new(T)); err != nil {
			t.Errorf("a file of an earlier form is not read as %T: %v\n%s", *new(T), err, payload)
		}
		var value any
		if err := json.Unmarshal(payload, &value); err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
	}
	for _, key := range missing(reflect.TypeFor[T](), "", values) {
		t.Errorf("no golden has the key %s of %T: write it into the goldens of a new form, beside those of "+
			"earlier forms", key, *new(T))
	}
}

var (
	ownJSON = reflect.TypeFor[json.Unmarshaler]()
	ownText = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// missing lists the keys of a type that none of its values has.
func missing(t reflect.Type, path string, values []any) (out []string) {
	if pointer := reflect.PointerTo(t); pointer.Implements(ownJSON) || pointer.Implements(ownText) {
		return nil
	}
	var inner []any
	switch t.Kind() {
	case reflect.Pointer:
		return missing(t.Elem(), path, values)
	case reflect.Slice, reflect.Array:
		for _, v := range values {
			list, _ := v.([]any) // A list of bytes is a text.
			inner = append(inner, list...)
		}
		return missing(t.Elem(), path+"[]", inner)
	case reflect.Map:
		for _, v := range values {
			object, _ := v.(map[string]any)
			for _, value := range object {
				inner = append(inner, value)
			}
		}
		return missing(t.Elem(), path+"{}", inner)
	case reflect.Struct:
	default:
		return nil
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
			continue
		case field.Anonymous && name == "":
			out = append(out, missing(field.Type, path, values)...)
			continue
		case name == "":
			name = field.Name
		}
		var of []any
		for _, v := range values {
			object, _ := v.(map[string]any)
			if value, ok := object[name]; ok {
				of = append(of, value)
			}
		}
		if len(of) == 0 {
			out = append(out, fmt.Sprintf("%s.%s", path, name))
			continue
		}
		out = append(out, missing(field.Type, path+"."+name, of)...)
	}
	return slices.Compact(out)
}

// Files returns the file's goldens of each form, after it has written the newest if that is asked for.
func Files(t testing.TB, newest, name string, written []byte) (files [][]byte) {
	t.Helper()
	const forms = "testdata/forms"
	if *Update {
		dir := filepath.Join(forms, newest)
		if err := errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, name), written, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	paths, err := filepath.Glob(filepath.Join(forms, "*", name))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden of %s: %v", name, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data)
	}
	return files
}

// Fill sets each exported field of a type to a value of its own kind, and gives each list and map one element.
func Fill[T any]() (out T) {
	fill(reflect.ValueOf(&out).Elem())
	return out
}

func fill(v reflect.Value) {
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		*at = time.Unix(1, 0).UTC()
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("json") != "-" {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("a")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1)
	}
}
