// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

// Trigger asks for the slices to be built again and compared with the published ones, soon. Requests that wait are one.
type Trigger chan struct{}

// NewTrigger makes a Trigger for one Publisher, and for all who know of changes.
func NewTrigger() Trigger { return make(Trigger, 1) }

// Fire does not block.
func (t Trigger) Fire() {
	select {
	case t <- struct{}{}:
	default:
	}
}
