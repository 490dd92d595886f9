// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// meter reads `go build -v`'s output: it counts the packages, tells the count now and then, and keeps
// the last lines for the error message.
type meter struct {
	out   io.Writer
	label string
	start time.Time

	mu       sync.Mutex
	packages int
	rest     []byte
	lines    []string
}

func newMeter(out io.Writer, label string, start time.Time) *meter {
	return &meter{out: out, label: label, start: start}
}

// run tells the count every 15 seconds until the returned function is called.
func (m *meter) run() (stop func()) {
	ticker := time.NewTicker(15 * time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				m.mu.Lock()
				n := m.packages
				m.mu.Unlock()
				fmt.Fprintf(m.out, "%s: %d packages compiled, %s elapsed\n", m.label, n, time.Since(m.start).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}

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
		if strings.ContainsAny(line, " \t") {
			m.lines = append(m.lines, line)
			m.lines = m.lines[max(0, len(m.lines)-40):]
		} else {
			m.packages++
		}
	}
}

func (m *meter) tail() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(append(m.lines, string(m.rest)), "\n")
}
