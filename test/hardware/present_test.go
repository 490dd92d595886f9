// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPresent_AnySign_IsFound(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"no GPU":              {nil, nil},
		"another vendor":      {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n"}, nil},
		"NVIDIA's audio":      {map[string]string{"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"}, nil},
		"a GPU, no driver":    {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}, []string{"0000:01:00.0"}},
		"a driver":            {map[string]string{"proc/driver/nvidia/version": "NVRM"}, []string{"proc/driver/nvidia/version"}},
		"GKE's driver root":   {map[string]string{"root/bin/nvidia-smi": ""}, []string{"bin/nvidia-smi"}},
		"nvidia-smi, no NVML": {map[string]string{"root/usr/bin/nvidia-smi": ""}, []string{"usr/bin/nvidia-smi"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			signs, err := roots{filepath.Join(dir, "root"), filepath.Join(dir, "proc"), filepath.Join(dir, "sys")}.present()
			if err != nil || !slices.EqualFunc(signs, c.want, func(sign, want string) bool { return strings.HasSuffix(sign, want) }) {
				t.Errorf("%q, %v, want %q", signs, err, c.want)
			}
		})
	}
}

func TestPresent_Unreadable_Error(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bus/pci"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bus/pci/devices"), nil, 0o600); err != nil { // Not a directory.
		t.Fatal(err)
	}
	if signs, err := (roots{dir, dir, dir}).present(); err == nil {
		t.Errorf("%q without an error", signs)
	}
}
