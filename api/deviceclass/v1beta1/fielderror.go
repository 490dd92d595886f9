// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/json"
)

// FieldError is an error of one field of a JSON object.
type FieldError struct {
	// Path is below the object, as sharing.mpsConfig.multiUser; empty for the object as a whole.
	Path string
	// Problem names the value and what is allowed instead.
	Problem error
}

func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Problem.Error()
	}
	return e.Path + ": " + e.Problem.Error()
}

func (e *FieldError) Unwrap() error { return e.Problem }

func invalid(path, format string, args ...any) error {
	return &FieldError{path, fmt.Errorf(format, args...)}
}

// Unmarshal decodes JSON as strictly as the API server: names are case-sensitive, and an unknown or duplicate field is an
// error. Every error is a FieldError.
func Unmarshal(data []byte, into any) error {
	strict, err := json.UnmarshalStrict(data, into)
	var wrongType *gojson.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		return invalid(wrongType.Field, "a %s is not allowed here", wrongType.Value) // The library's text names Go types.
	case err != nil:
		return &FieldError{"", err}
	case len(strict) == 0:
		return nil
	}
	var field json.FieldError
	if !errors.As(strict[0], &field) {
		return &FieldError{"", strict[0]}
	}
	// The parent is the path, so that the text says which of its fields is unknown.
	parent, name := "", field.FieldPath()
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, name = name[:i], name[i+1:]
	}
	field.SetFieldPath(clip(name))
	return &FieldError{clip(parent), field}
}

// clip keeps a user's long texts from filling an Event.
func clip(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
