// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package computepolicy

import "context"

// Reset resets the GPU at a PCI address, and no other. It can return late: a process inside of the kernel driver cannot be
// killed. The program ends with the plugin's container.
func (s SMI) Reset(ctx context.Context, address string) error {
	_, err := s.run(ctx, "-r", "-i", address)
	return err
}
