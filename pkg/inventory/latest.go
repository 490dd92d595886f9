// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync"
	"sync/atomic"

	"gpu-dra-driver/pkg/gpu"
)

// Latest holds the newest Snapshot, for all who need one without a scan of their own. Its methods may be called at once.
type Latest struct {
	snapshot atomic.Pointer[gpu.Snapshot]
	once     sync.Once
	scanned  chan struct{}
}

// NewLatest holds an empty Snapshot until the first Set.
func NewLatest() *Latest {
	l := &Latest{scanned: make(chan struct{})}
	l.snapshot.Store(&gpu.Snapshot{})
	return l
}

// Snapshot is the one of the newest Set.
func (l *Latest) Snapshot() gpu.Snapshot { return *l.snapshot.Load() }

// Scanned is closed with the first Set.
func (l *Latest) Scanned() <-chan struct{} { return l.scanned }

// Set replaces the Snapshot.
func (l *Latest) Set(s gpu.Snapshot) {
	l.snapshot.Store(&s)
	l.once.Do(func() { close(l.scanned) })
}
