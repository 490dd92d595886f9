// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

func TestAvailable_Meminfo_InBytes(t *testing.T) {
	const meminfo = "MemTotal:       24731708 kB\nMemFree:         1000 kB\nMemAvailable:   22020096 kB\n"
	if got := available(meminfo); got != 21<<30 {
		t.Errorf("got %d", got)
	}
	if got := available("MemTotal: 24731708 kB\n"); got != 0 {
		t.Errorf("without the line: %d", got)
	}
}

func TestTunables_Unchanged_RestoredWithoutWriting(t *testing.T) {
	dir := t.TempDir()
	if err := saveTunables(dir); err != nil {
		t.Fatal(err)
	}
	if err := restoreTunables(dir); err != nil {
		t.Error(err)
	}
	if err := os.Remove(dir + "/" + tunablesFile); err != nil {
		t.Fatal(err)
	}
	if err := restoreTunables(dir); err == nil {
		t.Error("values that cannot be read count as unchanged")
	}
}

func TestCode_CommandFails_IsItsExitCode(t *testing.T) {
	var got exitCode
	if err := code(exec.Command("sh", "-c", "exit 7").Run()); !errors.As(err, &got) || got != 7 {
		t.Errorf("got %v", err)
	}
	if err := code(exec.Command("/no-such-program").Run()); err == nil || errors.As(err, &got) {
		t.Errorf("a program that does not start has the exit code %v", err)
	}
}
