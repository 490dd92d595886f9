// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

//go:embed data/*.json
var data embed.FS

// Names lists the profiles, sorted.
func Names() []string {
	entries, err := data.ReadDir("data")
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	return names
}

// Load reads the profile with that name.
func Load(name string) (Profile, error) {
	b, err := data.ReadFile("data/" + name + ".json")
	if err != nil {
		return Profile{}, fmt.Errorf("no profile %q: choose one of %s", name, strings.Join(Names(), ", "))
	}
	p, err := Decode(b)
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}

// Decode reads and validates one profile. An unknown field is an error.
func Decode(b []byte) (Profile, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var p Profile
	if err := dec.Decode(&p); err != nil {
		return Profile{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return Profile{}, fmt.Errorf("data after the profile")
	}
	if err := p.Validate(); err != nil {
		return Profile{}, err
	}
	return p, nil
}
