// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"sync"
)

// Parallel calls work for each item at once, and returns when all calls have ended, with all their errors. A host with a
// fault hook calls it in order up to the first error, since the hook may end the process in the middle.
func Parallel[T any](h *Host, items []T, work func(T) error) error {
	if h.faultHook != nil || len(items) < 2 {
		for _, item := range items {
			if err := work(item); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, len(items))
	var group sync.WaitGroup
	for i, item := range items {
		group.Go(func() { errs[i] = work(item) })
	}
	group.Wait()
	return errors.Join(errs...)
}
