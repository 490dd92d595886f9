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

	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

const (
	// recoverPause is the pause after a pass that left work.
	recoverPause = 10 * time.Second
	// specInterval is how often the CDI specs are counted: somebody may delete them under running pods.
	specInterval = 5 * time.Second
	// claimInterval is how often claims of records are looked up in the API server.
	claimInterval = time.Minute
)

// recovery recovers claims after crashes, reboots and the deletion of claims.
type recovery struct {
	engine   *devicestate.Engine
	claims   devicestate.Claims
	deleted  *devicestate.DeletedClaims
	metrics  *metrics.Metrics
	events   *reporting.Events
	released func()
	fail     func(error)
	o        Options

	once sync.Once
	done chan struct{} // closed with the first pass

	mu       sync.Mutex
	failed   error             // of the newest pass, before the first one that was complete
	notified map[string]string // the last error of a claim, by UID
}

func newRecovery(
	engine *devicestate.Engine, claims devicestate.Claims, e *reporting.Events, m *metrics.Metrics,
	released func(), fail func(error), o Options,
) *recovery {
	return &recovery{
		engine: engine, claims: claims, metrics: m, events: e, released: released, fail: fail, o: o,
		deleted: devicestate.NewDeletedClaims(engine, claims, o.Usage, o.VanishedGrace),
		done:    make(chan struct{}), notified: map[string]string{},
	}
}

// run recovers until nothing is left to do, and again when CDI specs are missing.
func (r *recovery) run(ctx context.Context) {
	for {
		clean := false
		reporting.Protect(r.metrics, func() { clean = r.recover(ctx) })
		pause := specInterval
		if !clean {
			pause = recoverPause
		}
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			lost, err := r.engine.MissingSpecs()
			if errors.Is(err, store.ErrUnlinked) {
				r.fail(err)
			}
			again = !clean || err != nil || lost // An error shows in the next pass.
		}
	}
}

func (r *recovery) recover(ctx context.Context) (clean bool) {
	findings, err := r.engine.Recover(ctx)
	clean = r.notify(ctx, findings)
	if err == nil {
		r.once.Do(func() { close(r.done) })
		return clean
	}
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot look for what earlier runs left")
		r.mu.Lock()
		r.failed = err
		r.mu.Unlock()
	}
	return false
}

var errRecovering = errors.New("recovery of claims from before the restart is still in progress")

// wait waits for the first pass.
func (r *recovery) wait(ctx context.Context, limit time.Duration) error {
	err := waitFor(ctx, r.done, limit, errRecovering)
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, errRecovering) && r.failed != nil {
		return r.failed
	}
	return err
}

// watchClaims gives records back to claims that lost them, and releases those whose claim is gone.
func (r *recovery) watchClaims(ctx context.Context) {
	identify := func(ctx context.Context) ([]devicestate.Finding, error) { return r.engine.Identify(ctx, r.claims) }
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, check := range []func(context.Context) ([]devicestate.Finding, error){identify, r.deleted.Release} {
			reporting.Protect(r.metrics, func() {
				findings, err := check(ctx)
				if err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Cannot look after the claims of this node's records")
				}
				r.notify(ctx, findings)
			})
		}
		if r.o.Reconcile != nil {
			reporting.Protect(r.metrics, func() {
				for _, err := range r.o.Reconcile(ctx) {
					klog.FromContext(ctx).Error(err, "Cannot put a GPU back as it was found; trying again")
				}
			})
		}
		if r.o.Idle != nil {
			r.o.Idle()
		}
	}, claimInterval)
}

// notify logs, counts and reports findings, and says whether all was done.
func (r *recovery) notify(ctx context.Context, findings []devicestate.Finding) (clean bool) {
	clean = true
	for _, f := range findings {
		if f.Did == "" && f.Err == nil || ctx.Err() != nil {
			continue
		}
		logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(f.Claim.Namespace, f.Claim.Name), "claimUID", f.Claim.UID, "found", f.Found)
		r.metrics.Recovered(f.Found, f.Err)
		if f.Err == nil {
			logger.Info("Claim put right", "did", f.Did)
			r.isNew(f.Claim.UID, "")
			r.released()
			continue
		}
		clean = false
		if r.isNew(f.Claim.UID, f.Err.Error()) {
			err := typed(f)
			logger.Error(err, "Claim not put right yet, trying again")
			r.events.Warn(f.Claim, err)
		}
	}
	return clean
}

// isNew notes a claim's error, empty for none, and says whether it is another one than before.
func (r *recovery) isNew(uid, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.notified[uid]
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
	claim := f.Claim.String()
	if f.Claim.Name == "" {
		claim = "UID " + f.Claim.UID
	}
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "put right what was found", Claim: claim,
		Cause: f.Err, Remedy: "it is retried",
	}
}

// lookup finds claims in the API server.
type lookup struct {
	client resourcev1.ResourceClaimsGetter
}

// Get implements devicestate.Claims.
func (l lookup) Get(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if c.Name == "" {
		return l.search(ctx, c)
	}
	claim, err := l.client.ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		if missing(err) {
			err = devicestate.ErrNoClaim
		}
		return nil, fmt.Errorf("claim %s (UID %s): %w", c, c.UID, err)
	}
	if string(claim.UID) != c.UID {
		return nil, fmt.Errorf("claim %s (UID %s), whose name is another claim's now: %w", c, c.UID, devicestate.ErrNoClaim)
	}
	return claim, nil
}

// missing says that the server knows of no such object, as against a path that leads to no API: a proxy or a server on
// its way up says 404 too, and that must not pass for "gone".
func missing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// search goes through all claims: an unreadable record leaves no more than the UID, and that is rare.
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
