// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
)

const (
	// settingsInterval is the longest pause between two attempts to restore unneeded settings.
	settingsInterval = time.Minute
	// recoverPause is the pause after an incomplete pass. It is also the interval of checks for missing CDI specs,
	// which can be deleted while pods run, and for other device numbers without an event of the kernel.
	recoverPause = 10 * time.Second
	// claimInterval is the interval of look-ups of the records' claims in the API server.
	claimInterval = time.Minute
	// claimJitter is the part of the interval by which look-ups vary, so that not all nodes ask at once after an
	// upgrade.
	claimJitter = 0.2
	// maxNotified is far above the claims of a node.
	maxNotified = 2048
)

type recovery struct {
	engine   *devicestate.Engine
	claims   devicestate.Claims
	deleted  *devicestate.DeletedClaims
	metrics  *metrics.Metrics
	events   *reporting.Events
	changes  *changes
	fatal    fatal
	settings *executor.Settings
	// rebound requests a comparison of device numbers.
	rebound notify.Trigger

	once sync.Once
	done chan struct{} // Closed after the first pass.

	mu       sync.Mutex
	failed   error             // The newest error, until the first complete pass.
	notified map[string]string // The last error of a claim, by UID.
}

func newRecovery(
	engine *devicestate.Engine, claims devicestate.Claims, e *reporting.Events, m *metrics.Metrics, c *changes, f fatal,
	o Options,
) *recovery {
	return &recovery{
		engine: engine, claims: claims, metrics: m, events: e, changes: c, fatal: f, settings: o.Settings,
		rebound: o.Rebound,
		deleted: devicestate.NewDeletedClaims(engine, claims, o.Usage, o.VanishedGrace),
		done:    make(chan struct{}), notified: map[string]string{},
	}
}

// run recovers until all claims are done, and again whenever CDI specs are missing, records were unreadable or devices
// may have other numbers.
func (r *recovery) run(ctx context.Context) {
	for {
		clean, began := false, false
		reporting.Protect(r.metrics, func() { clean, began = r.recover(ctx) })
		ended := time.After(recoverPause)
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return
			case <-r.rebound:
				// A pass that cannot list the claims would fail at each event.
				again = began && r.engine.Renumbered()
			case <-ended:
				lost, err := r.engine.MissingSpecs()
				if errors.Is(err, store.ErrUnlinked) {
					r.fatal.fail(err)
				}
				again = !clean || err != nil || lost || // The next pass reports the error.
					r.engine.Incomplete() || r.engine.Renumbered()
				ended = time.After(recoverPause)
			}
		}
	}
}

// recover runs one pass. began means that it could list the claims.
func (r *recovery) recover(ctx context.Context) (clean, began bool) {
	findings, err := r.engine.Recover(ctx)
	clean = r.notify(ctx, findings)
	if err == nil {
		r.once.Do(func() { close(r.done) })
		return clean, true
	}
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Recovery failed; trying again")
		r.mu.Lock()
		r.failed = err
		r.mu.Unlock()
	}
	return false, false
}

var errRecovering = errors.New("recovery of claims from before the restart is still in progress")

func (r *recovery) wait(ctx context.Context, limit time.Duration) error {
	err := waitFor(ctx, r.done, limit, errRecovering)
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, errRecovering) && r.failed != nil {
		return r.failed
	}
	return err
}

// watchClaims rebuilds missing records of claims, and releases the devices of deleted claims.
func (r *recovery) watchClaims(ctx context.Context) {
	identify := func(ctx context.Context) ([]devicestate.Finding, error) { return r.engine.Identify(ctx, r.claims) }
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		for _, check := range []func(context.Context) ([]devicestate.Finding, error){identify, r.deleted.Release} {
			reporting.Protect(r.metrics, func() {
				findings, err := check(ctx)
				if err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Look-up of the records' claims failed; trying again")
				}
				r.notify(ctx, findings)
			})
		}
	}, claimInterval, claimJitter, true)
}

// watchSettings restores settings that no claim needs, after each release and at intervals.
func (r *recovery) watchSettings(ctx context.Context) {
	for ctx.Err() == nil {
		reporting.Protect(r.metrics, func() {
			for _, err := range r.settings.Reconcile(ctx) {
				klog.FromContext(ctx).Error(err, "Restoring the settings of an idle GPU failed; trying again")
			}
		})
		select {
		case <-ctx.Done():
		case <-r.changes.unneeded:
		case <-time.After(settingsInterval):
		}
	}
}

// notify logs, counts and reports findings. It returns whether all claims are done.
func (r *recovery) notify(ctx context.Context, findings []devicestate.Finding) (clean bool) {
	clean = true
	for _, f := range findings {
		if f.Did == "" && f.Err == nil || ctx.Err() != nil {
			continue
		}
		logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(f.Claim.Namespace, f.Claim.Name), "claimUID",
			f.Claim.UID, "found", f.Found)
		r.metrics.Recovered(f.Found, f.Err)
		if f.Err == nil {
			logger.Info("Claim recovered", "did", f.Did)
			r.isNew(f.Claim.UID, "")
			r.changes.released()
			continue
		}
		clean = false
		if r.isNew(f.Claim.UID, f.Err.Error()) {
			err := typed(f)
			logger.Error(err, "Claim not recovered yet; trying again")
			r.events.Warn(f.Claim, err)
		}
	}
	return clean
}

// isNew stores a claim's error, or "", and reports whether it differs from the previous one.
func (r *recovery) isNew(uid, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.notified[uid]
	if len(r.notified) >= maxNotified {
		clear(r.notified) // The claims of most of them are gone. The others are notified again.
	}
	r.notified[uid] = text
	if text == "" {
		delete(r.notified, uid)
	}
	return was != text
}

func typed(f devicestate.Finding) error {
	var already *claimerror.Error
	if errors.As(f.Err, &already) {
		return f.Err
	}
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "recovery", Claim: f.Claim.String(), UID: f.Claim.UID,
		Cause: f.Err, Remedy: "the plugin retries",
	}
}

// lookup gets claims from the API server.
type lookup struct {
	client resourcev1.ResourceClaimsGetter
}

func (l lookup) Get(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	return l.get(ctx, c, metav1.GetOptions{})
}

func (l lookup) GetCached(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	return l.get(ctx, c, metav1.GetOptions{ResourceVersion: "0"})
}

func (l lookup) get(ctx context.Context, c plan.Claim, o metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if c.Name == "" {
		return l.search(ctx, c)
	}
	claim, err := l.client.ResourceClaims(c.Namespace).Get(ctx, c.Name, o)
	if err != nil {
		if missing(err) {
			err = devicestate.ErrNoClaim
		}
		return nil, fmt.Errorf("claim %s (UID %s): %w", c, c.UID, err)
	}
	if string(claim.UID) != c.UID {
		return nil, fmt.Errorf("claim %s (UID %s), whose name another claim has now: %w", c, c.UID,
			devicestate.ErrNoClaim)
	}
	return claim, nil
}

// missing reports whether the API server has no such object. A proxy, or a server that starts, also answers 404 for a
// path without an API; that must not count as deleted.
func missing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// search lists all claims. It is rare: only an unreadable record has no more than the UID.
func (l lookup) search(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	options := metav1.ListOptions{Limit: 500}
	for {
		list, err := l.client.ResourceClaims(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("search the claim with UID %s: %w", c.UID, err)
		}
		for i := range list.Items {
			if string(list.Items[i].UID) == c.UID {
				return &list.Items[i], nil
			}
		}
		if list.Continue == "" {
			return nil, fmt.Errorf("UID %s: %w", c.UID, devicestate.ErrNoClaim)
		}
		options.Continue = list.Continue
	}
}
