// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gobuild

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

var start = time.Unix(1_700_000_000, 0)

func after(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// reads gives the meter a message of the go command.
func (m *meter) reads(t *testing.T, text string) {
	t.Helper()
	if _, err := m.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func wantLine(t *testing.T, m *meter, seconds int, want string) {
	t.Helper()
	if got := m.line(after(seconds)); got != want {
		t.Errorf("after %d s:\ngot  %q\nwant %q", seconds, got, want)
	}
}

func TestMeter_BuildProceeds_ShowsTotalAndTimeLeft(t *testing.T) {
	m := newMeter(&bytes.Buffer{}, "[7/7] kubernetes v1.37.1")
	m.reads(t, "go: downloading example.com/a v1.0.0\ngo: downloading example.com/b v1.0.0\ngo: finding")
	wantLine(t, m, 0, "[7/7] kubernetes v1.37.1: listing packages, 2 modules downloaded")
	m.reads(t, " module for package example.com/c\n")
	m.compiles(1600, start)
	wantLine(t, m, 1, "[7/7] kubernetes v1.37.1 [................] 0/1600 packages, 1s")
	for i := range 400 {
		m.reads(t, fmt.Sprintf("example.com/p%d\n", i))
	}
	wantLine(t, m, 60, "[7/7] kubernetes v1.37.1 [####............] 400/1600 packages, 1m0s, 3m0s left")
	for i := range 1200 {
		m.reads(t, fmt.Sprintf("example.com/q%d\n", i))
	}
	wantLine(t, m, 240, "[7/7] kubernetes v1.37.1 [################] linking, 4m0s")
}

func TestMeter_LongestLine_FitsTerminal(t *testing.T) {
	m := newMeter(&bytes.Buffer{}, "[7/7] kubernetes v1.37.1")
	m.compiles(1728, start)
	m.packages = 1727
	if line := m.line(after(599)); len(line) > 80 {
		t.Errorf("%d columns: %s", len(line), line)
	}
}

func TestMeter_NothingToCompile_ShowsLinking(t *testing.T) {
	m := newMeter(&bytes.Buffer{}, "[1/7] pause v1")
	m.compiles(0, start)
	wantLine(t, m, 2, "[1/7] pause v1 [################] linking, 2s")
}

func TestMeter_Ticks_LinesInLogAndOneLineOnTerminal(t *testing.T) {
	for terminal, want := range map[bool]string{
		false: "[1/7] pause v1 [####............] 1/4 packages, 30s, 1m30s left\n",
		true:  "\r\x1b[K[1/7] pause v1 [####............] 1/4 packages, 30s, 1m30s left\r\x1b[K",
	} {
		var out bytes.Buffer
		m := newMeter(&out, "[1/7] pause v1")
		m.terminal = terminal
		m.compiles(4, start)
		m.reads(t, "example.com/p\n")
		ticks := make(chan time.Time)
		stop := m.run(ticks)
		ticks <- after(30)
		stop()
		if got := out.String(); got != want {
			t.Errorf("terminal %t:\ngot  %q\nwant %q", terminal, got, want)
		}
	}
}
