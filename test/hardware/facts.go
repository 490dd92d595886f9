// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
)

// book collects what the tests saw of this machine, as facts with a name each.
type book struct {
	mu    sync.Mutex
	facts map[string]any
}

var seen = &book{facts: map[string]any{}}

// ends are called when the test is interrupted, because then no cleanup of a test runs.
var ends struct {
	mu  sync.Mutex
	all []func()
}

func atEnd(end func()) {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	ends.all = append(ends.all, end)
}

// onSignal leaves no process, mount or directory behind after SIGINT or SIGTERM.
func onSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		fmt.Println("interrupted by", s)
		ends.mu.Lock()
		for _, end := range slices.Backward(ends.all) {
			end()
		}
		os.Exit(130)
	}()
}

// UUIDs of GPUs and partitions, or their beginnings.
var uuid, digits = regexp.MustCompile(`(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]*`), regexp.MustCompile("[0-9a-f]")

// withoutUUIDs replaces UUIDs by zeros.
func withoutUUIDs(text string) string {
	return uuid.ReplaceAllStringFunc(text, func(found string) string { return found[:4] + digits.ReplaceAllString(found[4:], "0") })
}

// note prints a fact and keeps it.
func note(name string, value any) {
	seen.mu.Lock()
	defer seen.mu.Unlock()
	text, err := json.Marshal(value)
	if err != nil {
		text = fmt.Append(nil, value)
	}
	fmt.Printf("FACT %s: %s\n", name, withoutUUIDs(string(text)))
	seen.facts[name] = value
}

// outcome is the text of an error in a fact.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// write writes the facts, sorted by name.
func (b *book) write(dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := json.MarshalIndent(b.facts, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "facts.json"), []byte(withoutUUIDs(string(text))+"\n"), 0o644)
}
