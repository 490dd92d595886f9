// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"
	"slices"
)

// Check removes entries of a decoded account that Advance does not write. A map that the file lacks is empty.
func (a *Account) Check() {
	a.At, a.GPUs, a.Claims, a.Namespaces = max(0, a.At), made(a.GPUs), made(a.Claims), made(a.Namespaces)
	for address, g := range a.GPUs {
		for state, seconds := range g.Seconds {
			if seconds < 0 || !slices.Contains(States, state) {
				delete(g.Seconds, state)
			}
		}
		if g.Slices = max(0, g.Slices); g.Seconds == nil {
			delete(a.GPUs, address)
		} else {
			a.GPUs[address] = g
		}
	}
	for uid, c := range a.Claims {
		for address, use := range c.GPUs {
			if use.Allocated < 0 || use.Active < 0 || use.Occupied < 0 {
				delete(c.GPUs, address)
			}
		}
		if c.GPUs == nil {
			delete(a.Claims, uid)
		}
	}
	maps.DeleteFunc(a.Namespaces, func(_ string, n Namespace) bool {
		for model, seconds := range n.Seconds {
			if seconds < 0 {
				delete(n.Seconds, model)
			}
		}
		return n.Seconds == nil
	})
}

func made[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
