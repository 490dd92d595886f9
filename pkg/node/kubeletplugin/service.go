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
	"k8s.io/apimachinery/pkg/util/wait"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
)

// preparer prepares and unprepares claims; the engine implements it.
type preparer interface {
	Prepare(context.Context, *resourceapi.ResourceClaim) ([]devicestate.PreparedDevice, error)
	Unprepare(context.Context, plan.Claim) error
}

// How often and how long Prepare tries to get a device from a claim that is ending. The kubelet stops a pod's
// containers before it unprepares the pod's claims.
const endingInterval, endingTimeout = 200 * time.Millisecond, 10 * time.Second

// service handles the kubelet's calls.
type service struct {
	engine  preparer
	claims  devicestate.Claims
	metrics *metrics.Metrics
	events  *reporting.Events
	status  *reporting.ClaimStatus
	// Prepare waits for the recovery and the inventory.
	recovery  *recovery
	inventory *inventory.Inventory
	// devicePlugins is closed once the GPUs of device plugins are known.
	devicePlugins <-chan struct{}
	publisher     *publishing.Publisher
	changes       *changes
	fatal         fatal
}

// ready delays a Prepare until the first pass of recovery and the first scan are done.
func (s *service) ready(ctx context.Context) error {
	err := s.recovery.wait(ctx, readyLimit)
	if err == nil {
		err = waitFor(ctx, s.inventory.Scans.Scanned(), readyLimit, errors.New("NVML has not answered since its start"))
	}
	if err == nil {
		_ = waitFor(ctx, s.devicePlugins, kubeletLimit, errors.New("the kubelet is silent"))
		return nil
	}
	return &claimerror.Error{
		Reason: claimerror.DriverNotReady, Attempt: metrics.Prepare,
		Cause:  fmt.Errorf("the plugin is not ready: %w", err),
		Remedy: "the kubelet retries; if it persists, see the log of the node's kubelet plugin",
	}
}

// waitFor waits until done is closed; at the limit it returns late.
func waitFor(ctx context.Context, done <-chan struct{}, limit time.Duration, late error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// PrepareResourceClaims prepares the claims of a call concurrently. Each claim has its own result.
func (s *service) PrepareResourceClaims(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]draplugin.PrepareResult, error) {
	return inParallel(claims, func(c *resourceapi.ResourceClaim) (types.UID, draplugin.PrepareResult) {
		devices, err := s.prepare(ctx, c)
		return c.UID, draplugin.PrepareResult{Devices: devices, Err: forKubelet(err)}
	}), nil
}

// UnprepareResourceClaims unprepares the claims of a call concurrently.
func (s *service) UnprepareResourceClaims(
	ctx context.Context, claims []draplugin.NamespacedObject,
) (map[types.UID]error, error) {
	return inParallel(claims, func(c draplugin.NamespacedObject) (types.UID, error) {
		return c.UID, forKubelet(s.unprepare(ctx, plan.Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)}))
	}), nil
}

func inParallel[C, R any](claims []C, do func(C) (types.UID, R)) map[types.UID]R {
	results := make(map[types.UID]R, len(claims))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, claim := range claims {
		wg.Go(func() {
			uid, result := do(claim)
			mu.Lock()
			defer mu.Unlock()
			results[uid] = result
		})
	}
	wg.Wait()
	return results
}

// claimFailure has the text for the kubelet, which puts the claim's name before it in an Event on the pod.
type claimFailure struct{ error }

func forKubelet(err error) error {
	if err == nil {
		return nil
	}
	return claimFailure{err}
}

func (e claimFailure) Error() string {
	return string(claimerror.ReasonOf(e.error)) + ": " + claimerror.TextOnClaim(e.error)
}

func (e claimFailure) Unwrap() error { return e.error }

func (s *service) prepare(
	ctx context.Context, claim *resourceapi.ResourceClaim,
) (devices []draplugin.Device, err error) {
	began := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "claimUID", claim.UID)
	defer func() {
		if err = s.end(ctx, logger, metrics.Prepare, klog.KObj(claim).String(), began, recover(), err); err != nil {
			devices = nil
			if ctx.Err() == nil { // The kubelet writes the Event on the pod.
				s.events.Warn(plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}, err)
			} else {
				s.events.ClaimFailed(claim, err)
			}
		}
	}()
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	prepared, err := s.engine.Prepare(ctx, claim)
	if held := (*devicestate.HeldError)(nil); errors.As(err, &held) && s.ending(ctx, held.Claim) {
		// The kubelet is about to unprepare the other claim, and its next attempt for this one can be a minute away.
		// The wait polls, because another instance may serve that call.
		_ = wait.PollUntilContextTimeout(ctx, endingInterval, endingTimeout, false,
			func(context.Context) (bool, error) {
				prepared, err = s.engine.Prepare(ctx, claim)
				return !errors.As(err, &held), nil
			})
		if refused := (*claimerror.Error)(nil); errors.As(err, &held) && errors.As(err, &refused) {
			refused.Remedy = "the pod of that claim is ending; the kubelet retries in about a minute"
		}
	}
	if err != nil {
		switch claimerror.ReasonOf(err) {
		case claimerror.DriverNotReady, claimerror.DeviceNotReady, claimerror.DeviceLost, claimerror.UnknownDevice:
			s.inventory.Trigger.Fire() // No scan showed the GPU.
		}
		return nil, err
	}
	names := make([]string, len(prepared))
	for i, d := range prepared {
		devices, names[i] = append(devices, answer(d)), d.Name
	}
	logger.V(2).Info("Claim prepared", "devices", names, "took", time.Since(began))
	s.status.Prepared(claim, prepared)
	s.changes.prepared(prepared)
	return devices, nil
}

// ending reports whether no pod will use a prepared claim again, so that the kubelet unprepares it soon.
func (s *service) ending(ctx context.Context, claim plan.Claim) bool {
	c, err := s.claims.Get(ctx, claim)
	return errors.Is(err, devicestate.ErrNoClaim) ||
		err == nil && (c.DeletionTimestamp != nil || len(c.Status.ReservedFor) == 0)
}

func answer(d devicestate.PreparedDevice) draplugin.Device {
	out := draplugin.Device{
		Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Name, CDIDeviceIDs: []string{d.CDIDeviceID},
	}
	if d.ShareID != "" {
		out.ShareID = new(types.UID(d.ShareID))
	}
	return out
}

func (s *service) unprepare(ctx context.Context, claim plan.Claim) (err error) {
	began := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	defer func() {
		if err = s.end(ctx, logger, metrics.Unprepare, claim.String(), began, recover(), err); err != nil {
			s.events.Warn(claim, err)
		}
	}()
	s.status.Unprepared(types.UID(claim.UID))
	if err := s.engine.Unprepare(ctx, claim); err != nil {
		return err
	}
	logger.V(2).Info("Claim unprepared", "took", time.Since(began))
	s.changes.released()
	return nil
}

// end logs and counts the failure of one claim. It turns a panic into an error, so that other claims are not affected.
func (s *service) end(
	ctx context.Context, logger klog.Logger, operation, claim string, began time.Time, panicked any, err error,
) error {
	if panicked != nil {
		logger.Error(nil, "A bug of the driver stopped work on a claim",
			"operation", operation, "panic", panicked, "stack", string(debug.Stack()))
		err = &claimerror.Error{
			Reason: claimerror.InternalFault, Attempt: operation, Claim: claim,
			Cause:  errors.New("a bug of the driver stopped it"),
			Remedy: "the kubelet retries; please report the stack in the log of the node's kubelet plugin",
		}
	}
	if err != nil {
		noteFailure(ctx)
		reason := claimerror.ReasonOf(err)
		logger.Error(err, "Claim not "+operation+"d",
			"kind", claimerror.KindOf(err), "reason", reason, "took", time.Since(began))
		s.metrics.ClaimFailed(operation, reason)
	}
	return err
}

// HandleError receives the helper's errors: failures of its gRPC servers, which are fatal, and stale health reports.
func (s *service) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, "The kubeletplugin library reported an error", "during", msg)
	if !errors.Is(err, draplugin.ErrRecoverable) {
		s.fatal.fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus reports the health of the published devices until the kubelet ends the stream, often enough that
// the kubelet does not consider a report stale.
func (s *service) WatchHealthStatus(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "A bug of the driver stopped the health report",
				"panic", p, "stack", string(debug.Stack()))
			err = errors.New("a bug of the driver stopped the health report")
		}
	}()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case reports <- draplugin.DeviceHealthReport{Devices: s.publisher.Health(time.Now())}:
		}
	}, healthInterval)
	return nil
}
