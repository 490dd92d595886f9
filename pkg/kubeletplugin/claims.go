// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

// preparer is what does the work; the engine is the one.
type preparer interface {
	Prepare(context.Context, *resourceapi.ResourceClaim) ([]devicestate.PreparedDevice, error)
	Unprepare(context.Context, plan.Claim) error
}

// service answers the kubelet's calls.
type service struct {
	engine  preparer
	metrics *metrics.Metrics
	events  *events
	status  *statusWriter
	// ready returns once a Prepare can be served, or says why it cannot.
	ready func(context.Context) error
	// released is called after a claim was unprepared, holds after one was prepared.
	released func()
	holds    func([]devicestate.PreparedDevice)
	// absent is called when a claim needs a GPU that is not there.
	absent func()
	health func(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) error
	failed func(ctx context.Context, err error, msg string)
}

// PrepareResourceClaims prepares the claims of a call side by side; one that fails is its own error only.
func (s *service) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]draplugin.PrepareResult, error) {
	results := make(map[types.UID]draplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, claim := range claims {
		wg.Go(func() {
			devices, err := s.prepare(ctx, claim)
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = draplugin.PrepareResult{Devices: devices, Err: err}
		})
	}
	wg.Wait()
	return results, nil
}

func (s *service) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (devices []draplugin.Device, err error) {
	began := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "claimUID", claim.UID)
	defer func() {
		if p := recover(); p != nil {
			logger.Error(nil, "Preparing a claim met a bug of the driver", "panic", p, "stack", string(debug.Stack()))
			devices, err = nil, fault(metrics.Prepare, claim.Namespace+"/"+claim.Name)
		}
		if err == nil {
			return
		}
		noteFailure(ctx)
		logger.Error(err, "Claim not prepared", "kind", claimerror.KindOf(err), "reason", claimerror.ReasonOf(err), "took", time.Since(began))
		s.metrics.ClaimFailed(metrics.Prepare, claimerror.ReasonOf(err))
		s.events.claimFailed(claim, err)
	}()
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	prepared, err := s.engine.Prepare(ctx, claim)
	if err != nil {
		switch claimerror.ReasonOf(err) {
		case claimerror.DriverNotReady, claimerror.DeviceNotReady, claimerror.DeviceLost, claimerror.UnknownDevice:
			s.absent()
		}
		return nil, err
	}
	for _, d := range prepared {
		devices = append(devices, answer(d))
	}
	if logger := logger.V(2); logger.Enabled() {
		names := make([]string, len(prepared))
		for i, d := range prepared {
			names[i] = d.Name
		}
		logger.Info("Claim prepared", "devices", names, "took", time.Since(began))
	}
	s.status.prepared(claim, prepared)
	s.holds(prepared)
	return devices, nil
}

func answer(d devicestate.PreparedDevice) draplugin.Device {
	out := draplugin.Device{
		Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Name, CDIDeviceIDs: []string{d.CDIDeviceID},
	}
	if d.ShareID != "" {
		id := types.UID(d.ShareID)
		out.ShareID = &id
	}
	return out
}

// UnprepareResourceClaims unprepares the claims of a call side by side.
func (s *service) UnprepareResourceClaims(ctx context.Context, claims []draplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, claim := range claims {
		wg.Go(func() {
			err := s.unprepare(ctx, plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)})
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = err
		})
	}
	wg.Wait()
	return results, nil
}

func (s *service) unprepare(ctx context.Context, claim plan.Claim) (err error) {
	began := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	defer func() {
		if p := recover(); p != nil {
			logger.Error(nil, "Unpreparing a claim met a bug of the driver", "panic", p, "stack", string(debug.Stack()))
			err = fault(metrics.Unprepare, claim.String())
		}
		if err == nil {
			return
		}
		noteFailure(ctx)
		logger.Error(err, "Claim not unprepared", "kind", claimerror.KindOf(err), "reason", claimerror.ReasonOf(err), "took", time.Since(began))
		s.metrics.ClaimFailed(metrics.Unprepare, claimerror.ReasonOf(err))
		s.events.warn(claimRef(claim), err)
	}()
	s.status.unprepared(types.UID(claim.UID))
	if err := s.engine.Unprepare(ctx, claim); err != nil {
		return err
	}
	logger.V(2).Info("Claim unprepared", "took", time.Since(began))
	s.released()
	return nil
}

// fault is what a caller hears of a bug: one claim fails, the others and the plugin go on.
func fault(attempt, claim string) error {
	return &claimerror.Error{
		Reason: claimerror.InternalFault, Attempt: attempt, Claim: claim,
		Cause: errors.New("a bug of the driver stopped it"), Remedy: "it is retried; please report the stack in the log of the node's kubelet plugin",
	}
}

// HandleError hears of the helper's errors: of its gRPC servers, which are fatal, and of stale health reports.
func (s *service) HandleError(ctx context.Context, err error, msg string) { s.failed(ctx, err, msg) }

// WatchHealthStatus reports the health of the published devices until the kubelet ends the stream.
func (s *service) WatchHealthStatus(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Reporting health met a bug of the driver", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("a bug of the driver stopped the health report")
		}
	}()
	return s.health(ctx, reports)
}
