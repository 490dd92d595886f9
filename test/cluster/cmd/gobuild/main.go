// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command gobuild is go build with a progress bar.
//
//	gobuild LABEL TARGET [BUILD-FLAG...] PACKAGE
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"gpu-dra-driver/test/cluster/internal/gobuild"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: gobuild LABEL TARGET [BUILD-FLAG...] PACKAGE")
		os.Exit(2)
	}
	began, last := time.Now(), len(os.Args)-1
	b := gobuild.Build{
		Label: os.Args[1], Target: os.Args[2], Flags: os.Args[3:last], Packages: os.Args[last:],
		Command: func(args ...string) *exec.Cmd { return exec.Command("go", args...) },
	}
	if err := b.Run(os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", b.Label, time.Since(began).Round(time.Second))
}
