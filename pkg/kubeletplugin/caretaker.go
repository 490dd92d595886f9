// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/metrics"
)

const (
	// recoverAgain is the pause between attempts to mend what could not be mended.
	recoverAgain = 10 * time.Second
	// specCheck is how often the CDI specs are counted: somebody may delete them under running pods.
	specCheck = 5 * time.Second
	// claimCheck is how often claims of records are looked up in the API server.
	claimCheck = time.Minute
)

// caretaker puts right what crashes, reboots and vanished claims leave.
type caretaker struct {
	engine   *devicestate.Engine
	claims   devicestate.Claims
	vanished *devicestate.DeletedClaims
	metrics  *metrics.Metrics
	events   *events
	released func()
	// fail ends the process, for the kubelet to start it anew.
	fail func(error)
	// rest, if set, is called after a round that takes memory, tidy with each round.
	rest func()
	tidy func(context.Context) []error

	once      sync.Once
	recovered chan struct{} // closed with the first pass

	mu     sync.Mutex
	failed error             // why there was no first pass yet
	told   map[string]string // what was last said of a claim, by UID
}

func newCaretaker(engine *devicestate.Engine, claims devicestate.Claims, vanished *devicestate.DeletedClaims, m *metrics.Metrics, e *events, released func(), fail func(error)) *caretaker {
	return &caretaker{
		engine: engine, claims: claims, vanished: vanished, metrics: m, events: e, released: released, fail: fail,
		recovered: make(chan struct{}), told: map[string]string{},
	}
}

// keepRecovered runs Recover until nothing is left to do, and again when CDI specs are missing.
func (c *caretaker) keepRecovered(ctx context.Context) {
	for {
		clean := false
		protect(c.metrics, func() { clean = c.recover(ctx) })
		pause := specCheck
		if !clean {
			pause = recoverAgain
		}
		for {
			if !sleep(ctx, pause) {
				return
			}
			lost, err := c.engine.MissingSpecs()
			if errors.Is(err, store.ErrUnlinked) {
				c.fail(err)
			}
			if !clean || err != nil || lost {
				break // An error shows in the next pass.
			}
		}
	}
}

func (c *caretaker) recover(ctx context.Context) (clean bool) {
	findings, err := c.engine.Recover(ctx)
	clean = c.tell(ctx, findings)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot look for what earlier runs left")
			c.mu.Lock()
			c.failed = err
			c.mu.Unlock()
		}
		return false
	}
	c.once.Do(func() { close(c.recovered) })
	return clean
}

// waitRecovered waits for the first pass.
func (c *caretaker) waitRecovered(ctx context.Context, limit time.Duration) error {
	select {
	case <-c.recovered:
		return nil
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.recovered:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	return errors.New("what earlier runs left is still being put right")
}

// watchClaims gives records back to claims that lost them, and releases those whose claim is gone.
func (c *caretaker) watchClaims(ctx context.Context) {
	for {
		for _, look := range []func(context.Context) ([]devicestate.Finding, error){
			func(ctx context.Context) ([]devicestate.Finding, error) { return c.engine.Identify(ctx, c.claims) },
			c.vanished.Release,
		} {
			protect(c.metrics, func() {
				findings, err := look(ctx)
				if err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Cannot look after the claims of this node's records")
				}
				c.tell(ctx, findings)
			})
		}
		if c.tidy != nil {
			protect(c.metrics, func() {
				for _, err := range c.tidy(ctx) {
					klog.FromContext(ctx).Error(err, "Cannot put a GPU back as it was found; trying again")
				}
			})
		}
		if c.rest != nil {
			c.rest()
		}
		if !sleep(ctx, claimCheck) {
			return
		}
	}
}

// tell logs, counts and reports findings, and says whether all was done.
func (c *caretaker) tell(ctx context.Context, findings []devicestate.Finding) (clean bool) {
	clean = true
	logger := klog.FromContext(ctx)
	for _, f := range findings {
		if f.Did == "" && f.Err == nil || ctx.Err() != nil {
			continue
		}
		logger := logger.WithValues("claim", klog.KRef(f.Claim.Namespace, f.Claim.Name), "claimUID", f.Claim.UID, "found", f.Found)
		c.metrics.Recovered(f.Found, f.Err)
		if f.Err == nil {
			logger.Info("Claim put right", "did", f.Did)
			c.say(f.Claim.UID, "")
			c.released()
			continue
		}
		clean = false
		if !c.say(f.Claim.UID, f.Err.Error()) {
			continue
		}
		err := wrapped(f)
		logger.Error(err, "Claim not put right yet, trying again")
		if f.Claim.Name != "" {
			c.events.warn(claimRef(f.Claim), err)
		} else {
			c.events.warn(nodeRef(c.events.node), err)
		}
	}
	return clean
}

// say notes what is said of a claim and whether it is new.
func (c *caretaker) say(uid, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[uid] == text {
		return false
	}
	if text == "" {
		delete(c.told, uid)
	} else {
		c.told[uid] = text
	}
	return true
}

func wrapped(f devicestate.Finding) error {
	var said *claimerror.Error
	if errors.As(f.Err, &said) {
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

// sleep is false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
