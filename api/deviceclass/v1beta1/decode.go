// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/json"
)

// ErrUnsupported marks a kind that exists in the group and that this driver does not serve.
var ErrUnsupported = errors.New("not supported by this driver")

// maxBytes is the API's own limit on opaque parameters (ResourceClaim, v1).
const maxBytes = 10 * 1024

// notServed are the group's kinds that other drivers of the group serve.
var notServed = []string{"VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"}

// Decode reads one parameter object and fills in its defaults. Every error is or wraps a FieldError.
func Decode(data []byte) (Config, error) {
	if len(data) > maxBytes {
		return Config{}, invalid("", "parameters are %d bytes, the API allows %d", len(data), maxBytes)
	}
	// The kind comes first: the fields of an unserved kind are not this driver's to judge.
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
		return Config{}, invalid("kind", "%s is %w, use %s or %s", kind, ErrUnsupported, KindGPUConfig, KindMIGDeviceConfig)
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
