// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// readinessInterval is the interval of checks. An unchanged driver costs some system calls.
const readinessInterval = 10 * time.Second

// Driver is the driver's user space on the node.
type Driver interface {
	// Common returns the container edits of every claim. It does what it can to complete the driver.
	Common(ctx context.Context) (specs.ContainerEdits, error)
}

// Readiness finds out whether containers can use the node's driver, so that no pod is placed where its claim could not
// be prepared. It is safe for concurrent use.
type Readiness struct {
	driver  Driver
	reports notify.Reporter
	changed notify.Trigger

	mu      sync.Mutex
	problem string
	known   bool
}

// NewReadiness returns a Readiness that knows nothing before its first check. It fires changed after each change.
func NewReadiness(d Driver, reports notify.Reporter, changed notify.Trigger) *Readiness {
	return &Readiness{driver: d, reports: reports, changed: changed}
}

// Problem returns why no claim can be prepared, or "". known is false before the first check.
func (r *Readiness) Problem() (problem string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem, r.known
}

// Run checks until the context ends.
func (r *Readiness) Run(ctx context.Context) { wait.UntilWithContext(ctx, r.check, readinessInterval) }

func (r *Readiness) check(ctx context.Context) {
	_, err := r.driver.Common(ctx)
	if ctx.Err() != nil {
		return
	}
	problem := ""
	if err != nil && !errors.Is(err, driverroot.ErrDriverNotLoaded) { // Without the driver, scans find no GPUs.
		problem = err.Error()
	}
	r.mu.Lock()
	same := r.known && r.problem == problem
	r.problem, r.known = problem, true
	r.mu.Unlock()
	if same {
		return
	}
	r.changed.Fire()
	if problem == "" {
		klog.FromContext(ctx).Info("Containers can use the node's driver")
		return
	}
	r.reports.Report(&claimerror.Error{
		Reason: claimerror.DriverNotReady, Attempt: "check the driver for containers", Cause: err,
		Remedy: "the node's GPUs are tainted as not-ready until it is complete",
	})
}
