// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command registry is a registry in memory for the one-machine Kubernetes, which has a network of its own. It serves a port of
// localhost there, and a listener of the machine that is its standard input.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run() error {
	machine, err := net.FileListener(os.Stdin)
	if err != nil {
		return fmt.Errorf("the standard input is not a listener: %w", err)
	}
	// The same address serves both networks, because charts name it.
	node, err := net.Listen("tcp", machine.Addr().String())
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: time.Minute,
	}
	ended := make(chan error, 2)
	for _, listener := range []net.Listener{machine, node} {
		go func() { ended <- server.Serve(listener) }()
	}
	return errors.Join(<-ended, server.Close())
}
