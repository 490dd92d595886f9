// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/sim/engine"
)

// writeKernelLog adds the XIDs of a change to the kernel's log.
func writeKernelLog(root string, s *engine.State) error {
	if len(s.Raised) == 0 {
		return nil
	}
	at := filepath.Join(root, KernelLog)
	before, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	const errorLevel = 3
	number := bytes.Count(before, []byte("\n"))
	var lines bytes.Buffer
	for _, e := range s.Raised {
		if line := s.KernelLine(e); line != "" {
			fmt.Fprintf(&lines, "%d,%d,%d,-;%s\n", errorLevel, number, now.Nano()/1000, line)
			number++
		}
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(lines.Bytes())
	return errors.Join(err, f.Close())
}
