// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"sync"
)

// output keeps the end of what a daemon and its servers print, which is a line for each command and each client, for as
// long as they run. It can be read meanwhile.
type output struct {
	mu     sync.Mutex
	end    []byte
	faults chan struct{} // has room for one hint
}

// outputKept is the number of bytes that an output keeps.
const outputKept = 16 << 10

// faultHint is in a line of a server that meets a fault (driver 580.159.04: "Server is handling a fatal GPU error.").
// It only makes the supervisor ask sooner: other drivers may print another text.
var faultHint = []byte("fatal GPU error")

func newOutput() *output { return &output{faults: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	from := max(len(o.end)-len(faultHint), 0) // The hint can be in two parts.
	o.end = append(o.end, p...)
	if bytes.Contains(o.end[from:], faultHint) {
		select {
		case o.faults <- struct{}{}:
		default:
		}
	}
	if extra := len(o.end) - outputKept; extra > 0 {
		o.end = append(o.end[:0], o.end[extra:]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.end)
}
