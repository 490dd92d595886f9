// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "readme":
		return writeReadme(args[1])
	case len(args) == 2 && args[0] == "attributes":
		return writeAttributes(args[1])
	case len(args) == 2 && args[0] == "faults":
		return writeFaults(args[1])
	case len(args) > 3 && args[0] == "schemas":
		return writeSchemas(args[1], args[2], args[3:])
	default:
		return errors.New("usage: gen readme CHART | gen attributes CHART | gen faults CHART | gen schemas SPECS OUT KIND…")
	}
}
