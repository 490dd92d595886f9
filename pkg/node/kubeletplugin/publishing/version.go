// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

const (
	// versionInterval is the interval at which the API server's version is read, and the longest pause after failures.
	versionInterval = 5 * time.Minute
	// versionRetry is the pause after the first failure. It doubles with each further one.
	versionRetry = 2 * time.Second
	// versionLimit limits one read.
	versionLimit = 5 * time.Second
	// versionSettles is the time for which a version counts after it was last read. API servers of several versions
	// answer in turn during an upgrade, and the scheduler is upgraded after them.
	versionSettles = time.Hour
	// unknownReads is the number of failed reads after which an unknown version is reported.
	unknownReads = 3
)

// version estimates the scheduler's version. Only Run uses it.
type version struct {
	// set is the version in the settings; the zero Version means that the API server's counts.
	set    schedulerfault.Version
	server discovery.ServerVersionInterfaceWithContext
	now    func() time.Time

	// seen holds the time of the last read of each version. An answer that is not a version counts as the unknown one.
	seen map[schedulerfault.Version]time.Time
	// last is the answer of the last successful read.
	last     schedulerfault.Version
	due      time.Time
	failures int
	err      error
	// estimated is the estimate of the last build.
	estimated []schedulerfault.Version
}

// update reads the version if it is due. A failed read changes nothing: without any version the scheduler's is unknown.
func (v *version) update(ctx context.Context) {
	if v.set != (schedulerfault.Version{}) || v.now().Before(v.due) {
		return
	}
	limited, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	answer, err := v.server.ServerVersionWithContext(limited)
	if err != nil {
		v.err = fmt.Errorf("read the API server's version: %w", err)
		v.due = v.now().Add(min(versionRetry<<min(v.failures, 10), versionInterval))
		v.failures++
		klog.FromContext(ctx).V(2).Info("Cannot read the API server's version", "err", err)
		return
	}
	now := v.now()
	v.due, v.failures = now.Add(versionInterval), 0
	v.last, v.err = schedulerfault.Parse(answer.GitVersion)
	if v.seen == nil {
		v.seen = map[schedulerfault.Version]time.Time{}
	}
	v.seen[v.last] = now
}

// estimate returns the versions that the scheduler can have: the set one, or those of the last hour.
func (v *version) estimate() []schedulerfault.Version {
	if v.set != (schedulerfault.Version{}) {
		return []schedulerfault.Version{v.set}
	}
	out := []schedulerfault.Version{v.last}
	for one, at := range v.seen {
		if one != v.last && v.now().Sub(at) < versionSettles {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, schedulerfault.Version.Compare)
	return out
}

// changed reports whether the next build has other faults to consider, or to report.
func (v *version) changed() bool {
	return !slices.Equal(v.estimate(), v.estimated) || v.seen == nil && v.failures == unknownReads
}

// observed is a fault of a version that the scheduler can have.
type observed struct {
	schedulerfault.Fault
	version schedulerfault.Version
}

// faults returns the faults of all versions that the scheduler can have, over slices with the features.
func (v *version) faults(of schedulerfault.Features) (out []observed) {
	v.estimated = v.estimate()
	for _, one := range v.estimated {
		for _, f := range schedulerfault.Of(one, of) {
			if !slices.ContainsFunc(out, func(o observed) bool { return o.Name == f.Name }) {
				out = append(out, observed{f, one})
			}
		}
	}
	return out
}

// error describes a fault for the administrator; nil while it is too early for that.
func (v *version) error(f observed) error {
	attempt, about := "check the scheduler", "the scheduler of Kubernetes "+f.version.String()+" has a known fault: "
	if f.Without != (schedulerfault.Features{}) {
		attempt = "publish " + f.Without.String()
	}
	cause := errors.New(about + f.Text)
	if f.version == (schedulerfault.Version{}) {
		if v.seen == nil && v.failures < unknownReads {
			return nil
		}
		cause = errors.New(f.Text)
		if v.err != nil {
			cause = fmt.Errorf("%s: %w", f.Text, v.err)
		}
	}
	return &claimerror.Error{Reason: claimerror.SchedulerFault, Attempt: attempt, Cause: cause, Remedy: f.Remedy()}
}

// without returns f without the features that known faults of the scheduler forbid.
func (f features) without(left schedulerfault.Features) features {
	f.heldShares = f.sharedDevices && left.Shares
	f.sharedDevices = f.sharedDevices && !left.Shares
	f.counters = f.counters && !left.Counters
	return f
}

// offered returns the features to publish with, and reports faults of the scheduler that are new.
func (p *Publisher) offered(f features) features {
	var left schedulerfault.Features
	reported := map[string]bool{}
	for _, one := range p.version.faults(schedulerfault.Features{Counters: f.counters, Shares: f.sharedDevices}) {
		left = left.Or(one.Without)
		if p.reported[one.Name] {
			reported[one.Name] = true
		} else if err := p.version.error(one); err != nil {
			reported[one.Name] = true
			p.o.Reports.Report(err)
		}
	}
	p.reported = reported
	return f.without(left)
}
