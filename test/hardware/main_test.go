// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"fmt"
	"os"
	"testing"

	"gpu-dra-driver/internal/mpsd/supervisor"
)

// TestMain also is the clients' process, and that of the supervisor's daemons.
func TestMain(m *testing.M) {
	var err error
	switch text := os.Getenv(clientVariable); {
	case len(os.Args) > 1 && os.Args[1] == supervisor.EnterVerb:
		err = supervisor.Enter(os.Args[2:])
	case os.Getenv(processesVariable) != "":
		err = printProcesses(os.Getenv(processesVariable))
	case text != "":
		err = serveClient(text)
	default:
		onSignal()
		before := readSettings()
		code := m.Run()
		if after := readSettings(); after != before {
			fmt.Fprintf(os.Stderr, "the settings of the GPUs were\n%s\nand are\n%s\n", before, after)
			code = 1
		} else if before != "" {
			note("settings", before)
		}
		if *out != "" {
			if err := seen.write(*out); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
		os.Exit(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
