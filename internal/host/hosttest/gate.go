// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import "gpu-dra-driver/internal/host"

// Gate stops a process before the first write with a label, until Open is closed.
type Gate struct {
	label         host.Label
	Reached, Open chan struct{}
}

// NewGate makes a closed Gate.
func NewGate(label host.Label) *Gate { return &Gate{label, make(chan struct{}), make(chan struct{})} }

// Do is the host.FaultHook.
func (g *Gate) Do(o host.Operation, do func() error) error {
	if o.Label == g.label && o.Call == host.CallWrite {
		close(g.Reached)
		<-g.Open
	}
	return do()
}
