// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
)

func TestDCGMNames_ExporterOnNode_OffByDefault(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name string) {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	on := func(setting string) bool { return dcgmNames(flags.Config{ProcRoot: proc, DCGMNames: setting})() }
	process("12", "nv-hostengine")
	if !on(flags.DCGMAuto) || !on(flags.DCGMOn) || on(flags.DCGMOff) {
		t.Error("without an exporter, Auto and On serve DCGM's names, and Off does not")
	}
	process("13", "dcgm-exporter")
	if on(flags.DCGMAuto) || !on(flags.DCGMOn) {
		t.Error("beside an exporter, only On serves DCGM's names")
	}
}
