// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpu-dra-driver/cmd/dra-controller/flags"
	"gpu-dra-driver/pkg/controller"
)

// checkFor bounds a check.
const checkFor = 50 * time.Second

// check runs the check that the flags ask for, and says what it found.
func check(ctx context.Context, c flags.Config, config *rest.Config, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for the API server: %w", err)
	}
	checks := controller.Checks{Client: client, Driver: c.DriverName, Namespace: c.PodNamespace, Webhook: c.Webhook, Out: out}
	switch c.Check {
	case flags.CheckInstallation:
		return checks.Installation(ctx)
	case flags.CheckUninstall:
		return checks.Uninstall(ctx)
	}
	return errors.New("there is no such check")
}
