// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/watcher"
)

const (
	// xidInterval is the time for which the same XID of the same GPU or partition is not reported again.
	xidInterval = time.Minute
	// maxXIDs limits the remembered XIDs, because hardware chooses the numbers.
	maxXIDs = 1024
)

// XIDs reports XIDs to the claims with the GPU or the partition: in the claim's status, and in Events on the claim and
// its pods. An XID of a partition that is gone is only counted.
type XIDs struct {
	Claims
	scans *inventory.Latest
	queue chan watcher.Event

	mu   sync.Mutex
	last map[watcher.Key]time.Time
}

// NewXIDs returns an XIDs; Run starts it.
func NewXIDs(c Claims, scans *inventory.Latest) *XIDs {
	return &XIDs{Claims: c, scans: scans, queue: make(chan watcher.Event, 64), last: map[watcher.Key]time.Time{}}
}

// Notify queues an XID, unless it was reported less than a minute ago. It does not block. Without room in the queue,
// the XID is not reported.
func (x *XIDs) Notify(e watcher.Event) {
	if !health.XIDOf(e.XID).Reported() || !x.due(e.Key(), time.Now()) {
		return
	}
	select {
	case x.queue <- e:
	default:
	}
}

func (x *XIDs) due(k watcher.Key, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := x.last[k]; ok && now.Sub(last) < xidInterval {
		return false
	}
	if len(x.last) >= maxXIDs {
		maps.DeleteFunc(x.last, func(_ watcher.Key, last time.Time) bool { return now.Sub(last) >= xidInterval })
	}
	if len(x.last) >= maxXIDs {
		return false
	}
	x.last[k] = now
	return true
}

// Run reports until the context ends.
func (x *XIDs) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-x.queue:
			Protect(x.metrics, func() { x.report(ctx, e) })
		}
	}
}

func (x *XIDs) report(ctx context.Context, e watcher.Event) {
	logger, known := klog.FromContext(ctx), health.XIDOf(e.XID)
	logger.Info("XID", "xid", known.String(), "gpu", e.GPU.PCIAddress, "uuid", e.GPU.UUID, "gpuInstance", e.GPUInstance)
	plans, incomplete, err := x.engine.Held()
	if err != nil {
		logger.Error(err, "Cannot read which claims have the GPU of an XID", "xid", e.XID)
		return
	}
	if !incomplete {
		x.status.keepXIDs(plans)
	}
	affected := map[types.UID][]string{} // The names of devices.
	for _, p := range plans {
		if names := affectedDevices(p, e); len(names) > 0 {
			affected[types.UID(p.Claim.UID)] = names
		}
	}
	found, ok := x.scans.Snapshot().ByAddress(e.GPU.PCIAddress)
	healthy := ok && found.UUID == e.GPU.UUID && len(found.Faults) == 0
	text := known.Text(len(affected) == 1, healthy)
	for _, p := range plans {
		if names := affected[types.UID(p.Claim.UID)]; len(names) > 0 {
			x.notify(ctx, p, names, known, text)
		}
	}
}

// affectedDevices returns the names of a plan's devices that have the GPU or the partition of an XID.
func affectedDevices(p plan.Plan, e watcher.Event) (names []string) {
	for _, d := range p.Devices {
		if d.PCIAddress != e.GPU.PCIAddress || d.UUID != e.GPU.UUID || d.Admin || d.Kind == gpu.KindMonitor {
			continue
		}
		if e.GPUInstance < 0 || d.Kind == gpu.KindMIG && d.Partition.GPUInstance == e.GPUInstance {
			names = append(names, d.Name)
		}
	}
	return names
}

// claimRetries repeat the read of a claim for half a minute.
var claimRetries = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 6}

func (x *XIDs) notify(ctx context.Context, p plan.Plan, names []string, known health.XID, text string) {
	err := wait.ExponentialBackoffWithContext(ctx, claimRetries, func(ctx context.Context) (bool, error) {
		claim, err := x.claims.Get(ctx, p.Claim)
		if err != nil {
			return errors.Is(err, devicestate.ErrNoClaim), nil
		}
		for _, name := range names {
			x.events.ClaimFailed(claim, &claimerror.Error{
				Reason:  claimerror.XIDError,
				Attempt: "work",
				Claim:   p.Claim.String(),
				UID:     p.Claim.UID,
				Device:  name,
				Cause:   errors.New(text),
				Remedy:  known.Remedy(),
			})
			x.status.setXID(claim.UID, name, known.Code, text)
		}
		x.status.update(claim, x.engine.Devices(p))
		return true, nil
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read a claim to report an XID",
			"claim", p.Claim.String(), "xid", known.Code)
	}
}
