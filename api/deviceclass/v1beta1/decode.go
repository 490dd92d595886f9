// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrUnsupported marks a kind that exists in the group and that this driver does not serve.
var ErrUnsupported = errors.New("not supported by this driver")

// maxBytes is the API's own limit on opaque parameters (ResourceClaim, v1).
const maxBytes = 10 * 1024

// notServed are the group's kinds that other drivers of the group serve.
var notServed = map[string]bool{
	"VfioDeviceConfig": true, "ComputeDomainChannelConfig": true, "ComputeDomainDaemonConfig": true,
}

// Decode reads one parameter object. The error names the field, its value and what is allowed there.
func Decode(data []byte) (Config, error) {
	if len(data) > maxBytes {
		return Config{}, fmt.Errorf("parameters are %d bytes, the API allows %d", len(data), maxBytes)
	}
	var object map[string]json.RawMessage
	if err := strictly(data, &object); err != nil {
		return Config{}, fmt.Errorf("parameters are not a JSON object: %w", err)
	}
	apiVersion, err := text(object, "apiVersion")
	if err != nil {
		return Config{}, err
	}
	kind, err := text(object, "kind")
	if err != nil {
		return Config{}, err
	}
	if apiVersion != GroupVersion {
		return Config{}, fmt.Errorf("apiVersion: %q is not known, use %q", clip(apiVersion), GroupVersion)
	}
	switch {
	case notServed[kind]:
		return Config{}, fmt.Errorf("kind: %s is %w, use %s or %s", kind, ErrUnsupported, KindGPUConfig, KindMIGDeviceConfig)
	case kind != KindGPUConfig && kind != KindMIGDeviceConfig:
		return Config{}, fmt.Errorf("kind: %q is not known, use %s or %s", clip(kind), KindGPUConfig, KindMIGDeviceConfig)
	}
	delete(object, "apiVersion")
	delete(object, "kind")
	rest, err := json.Marshal(object)
	if err != nil {
		return Config{}, fmt.Errorf("parameters: %w", err)
	}
	var config Config
	into := any(nil)
	if kind == KindMIGDeviceConfig {
		config.MIG = &MIGDeviceConfig{}
		into = config.MIG
	} else {
		config.GPU = &GPUConfig{}
		into = config.GPU
	}
	if err = strictly(rest, into); err == nil {
		err = config.Sharing().complete(config.MIG != nil)
	}
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", kind, err)
	}
	return config, nil
}

func text(object map[string]json.RawMessage, field string) (string, error) {
	raw, ok := object[field]
	if !ok {
		return "", fmt.Errorf("%s: missing", field)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %s is not a string", field, clip(string(raw)))
	}
	return s, nil
}

func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return plain(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

// plain rewords what encoding/json says, for its texts name Go types.
func plain(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return fmt.Errorf("%s: a %s is not allowed here", wrongType.Field, wrongType.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown field %s", clip(name))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// clip keeps a user's noise from filling an Event.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
