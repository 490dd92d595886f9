// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gobuild

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// barWidth keeps a line of progress within 80 columns.
const barWidth = 16

// meter shows the progress of a build. It reads the messages of the go command: downloaded modules, compiled
// packages, and the last lines, which the error message quotes. On a terminal it redraws one line; elsewhere it
// writes a line at each tick.
type meter struct {
	out      io.Writer
	label    string
	terminal bool

	mu                       sync.Mutex
	began                    time.Time // of the compilation, zero before it
	modules, packages, total int
	rest                     []byte
	lines                    []string
}

func newMeter(out io.Writer, label string) *meter {
	return &meter{out: out, label: label, terminal: isTerminal(out)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// interval is the time between two ticks: a log gets few lines.
func (m *meter) interval() time.Duration {
	if m.terminal {
		return time.Second
	}
	return 15 * time.Second
}

// run shows the progress at each tick until the returned function is called.
func (m *meter) run(ticks <-chan time.Time) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case now := <-ticks:
				m.show(now)
			case <-done:
				if m.terminal {
					fmt.Fprint(m.out, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func (m *meter) show(now time.Time) {
	if m.terminal {
		fmt.Fprint(m.out, "\r\x1b[K", m.line(now))
		return
	}
	fmt.Fprintln(m.out, m.line(now))
}

// compiles starts the compilation of total packages.
func (m *meter) compiles(total int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began, m.total = now, total
}

// line is the progress in one line.
func (m *meter) line(now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began.IsZero() {
		return fmt.Sprintf("%s: listing packages, %d modules downloaded", m.label, m.modules)
	}
	took := now.Sub(m.began)
	if m.packages >= m.total {
		return fmt.Sprintf("%s [%s] linking, %s", m.label, strings.Repeat("#", barWidth), took.Round(time.Second))
	}
	full := barWidth * m.packages / m.total
	bar := strings.Repeat("#", full) + strings.Repeat(".", barWidth-full)
	text := fmt.Sprintf("%s [%s] %d/%d packages, %s", m.label, bar, m.packages, m.total, took.Round(time.Second))
	// The first packages are the small ones of the standard library: the speed is not known yet.
	if m.packages*20 < m.total {
		return text
	}
	left := took * time.Duration(m.total-m.packages) / time.Duration(m.packages)
	return fmt.Sprintf("%s, %s left", text, left.Round(time.Second))
}

// Write reads messages of the go command.
func (m *meter) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rest = append(m.rest, b...)
	for {
		i := bytes.IndexByte(m.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		line := string(m.rest[:i])
		m.rest = m.rest[i+1:]
		// A bare import path is a compiled package; downloads and compiler errors have blanks.
		if !strings.ContainsAny(line, " \t") {
			m.packages++
			continue
		}
		if strings.HasPrefix(line, "go: downloading ") {
			m.modules++
		}
		m.lines = append(m.lines, line)
		m.lines = m.lines[max(0, len(m.lines)-40):]
	}
}

func (m *meter) tail() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(append(m.lines, string(m.rest)), "\n")
}
