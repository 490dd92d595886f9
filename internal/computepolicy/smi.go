// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package computepolicy

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpu-dra-driver/internal/driverprogram"
)

type SMI struct {
	// Root is the driver root as this process sees it.
	Root string
}

// names holds the time slices by number, as nvidia-smi prints them.
var names = []string{"default", "short", "medium", "long"}

// Set sets the time slice, 0 (default) to 3 (long), of the GPU with a UUID.
func (s SMI) Set(ctx context.Context, uuid string, interval int) error {
	if interval < 0 || interval >= len(names) {
		return fmt.Errorf("%d is not a time slice (0 to 3)", interval)
	}
	_, err := s.run(ctx, "compute-policy", "-i", uuid, "--set-timeslice="+strconv.Itoa(interval))
	return err
}

// Get reads the time slice, 0 to 3.
func (s SMI) Get(ctx context.Context, uuid string) (int, error) {
	out, err := s.run(ctx, "compute-policy", "-i", uuid, "-l")
	if err != nil {
		return 0, err
	}
	return parse(out)
}

// Reset resets the GPU at a PCI address, and no other. It can return late: a process inside of the kernel driver cannot
// be killed. The program ends with the plugin's container.
func (s SMI) Reset(ctx context.Context, address string) error {
	_, err := s.run(ctx, "-r", "-i", address)
	return err
}

// row matches the table's line of a GPU, such as `|   0   Timeslice       Default       |`. Messages with the words of
// options are not rows.
var row = regexp.MustCompile(`(?im)^[|\s]*[0-9]+[|\s]+timeslice[|\s]+([A-Za-z]+)[|\s]*$`)

func parse(out string) (int, error) {
	if m := row.FindStringSubmatch(out); m != nil {
		for n, name := range names {
			if strings.EqualFold(m[1], name) {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("nvidia-smi compute-policy printed no time slice: %s", clip(out))
}

func (s SMI) run(ctx context.Context, args ...string) (string, error) {
	program, err := driverprogram.Find(s.Root, "nvidia-smi", "install the driver's utilities (nvidia-utils)")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program.Path, args...)
	cmd.Dir, cmd.Env = "/", program.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: strings.TrimSuffix(program.Root, "/")}
	// Children of a killed process may hold its pipes open.
	cmd.WaitDelay = time.Second
	var out driverprogram.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	text := out.String()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("nvidia-smi %s did not end in time: %w", strings.Join(args, " "), context.Cause(ctx))
	case err != nil:
		return "", fmt.Errorf("nvidia-smi %s: %w: %s", strings.Join(args, " "), err, clip(text))
	}
	return text, nil
}

// clip shortens a program's output, so that it does not fill an Event.
func clip(s string) string {
	const maxOutput = 200
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
	if len(s) > maxOutput {
		s = strings.ToValidUTF8(s[:maxOutput], "") + "…"
	}
	return s
}
