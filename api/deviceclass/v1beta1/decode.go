// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/json"
)

// maxBytes is the API's own limit on opaque parameters (ResourceClaim, v1).
const maxBytes = 10 * 1024

// notServed lists the group's kinds that only other drivers serve.
var notServed = []string{"VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"}

// Decode reads one parameter object and fills in its defaults. Every error is or wraps a FieldError.
func Decode(data []byte) (Config, error) {
	if len(data) > maxBytes {
		return Config{}, invalid("", "parameters are %d bytes, the API allows %d", len(data), maxBytes)
	}
	// The kind is decoded first: this driver does not validate the fields of a kind that it does not serve.
	var header struct {
		APIVersion any `json:"apiVersion"`
		Kind       any `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &header); err != nil {
		return Config{}, invalid("", "parameters are not a JSON object: %w", err)
	}
	apiVersion, err := text("apiVersion", header.APIVersion)
	if err != nil {
		return Config{}, err
	}
	kind, err := text("kind", header.Kind)
	switch {
	case err != nil:
		return Config{}, err
	case apiVersion != GroupVersion:
		return Config{}, invalid("apiVersion", "%q is not known, use %q", clip(apiVersion), GroupVersion)
	case slices.Contains(notServed, kind):
		return Config{}, invalid("kind", "%s is not supported by this driver, use %s or %s", kind, KindGPUConfig, KindMIGDeviceConfig)
	case kind != KindGPUConfig && kind != KindMIGDeviceConfig:
		return Config{}, invalid("kind", "%q is not known, use %s or %s", clip(kind), KindGPUConfig, KindMIGDeviceConfig)
	}
	var config Config
	if err = Unmarshal(data, &config); err == nil {
		err = config.complete()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", kind, err)
	}
	return config, nil
}

func text(field string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case nil:
		return "", invalid(field, "missing")
	default:
		return "", invalid(field, "%s is not a string", clip(fmt.Sprint(v)))
	}
}

type FieldError struct {
	// Path is relative to the object, such as sharing.mpsConfig.multiUser. It is empty for the object as a whole.
	Path string
	// Problem names the value and the allowed values.
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
	// The path's parent makes the text name the object with the unknown field.
	parent, name := "", field.FieldPath()
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, name = name[:i], name[i+1:]
	}
	field.SetFieldPath(clip(name))
	return &FieldError{clip(parent), field}
}

// clip shortens a user's long texts, so that they do not fill an Event.
func clip(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
