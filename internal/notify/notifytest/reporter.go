// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package notifytest has receivers of errors for tests.
package notifytest

// Reporter calls a function with each error. A nil Reporter drops them.
type Reporter func(error)

// Report implements notify.Reporter.
func (r Reporter) Report(err error) {
	if r != nil {
		r(err)
	}
}
