// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/node/metrics"
)

const (
	// maxMessage is the limit of the events API (events.k8s.io/v1, note), in bytes.
	maxMessage = 1024
	// maxConsumers limits the Events of one failure, because a claim can have 256 consumers.
	maxConsumers = 16
	// maxRecent is the number of objects whose recent Events are remembered, to count repetitions. Each takes several
	// kilobytes, and tenants create claims at will.
	maxRecent = 512
)

// Events writes Events about failures. Its methods do not block and are safe for concurrent use. client-go's
// broadcaster counts repeated Events, drops bursts, and queues while the API server is away.
type Events struct {
	node        string
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	claims      resourcev1.ResourceClaimsGetter
	metrics     *metrics.Metrics
	reports     chan error
}

// NewEvents returns the Events of one node; component is their source. Run stops the broadcaster.
func NewEvents(client kubernetes.Interface, node, component string, m *metrics.Metrics) *Events {
	b := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: maxRecent}))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Events{
		node: node, broadcaster: b, claims: client.ResourceV1(), metrics: m, reports: make(chan error, 64),
		recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node}),
	}
}

// Warn writes a Warning about a claim, or about the node if the claim's name is unknown.
func (e *Events) Warn(claim plan.Claim, err error) {
	about := corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: types.UID(claim.UID),
	}
	if claim.Name == "" {
		// kubectl describe node finds Events whose UID is the node's name, as in the kubelet's Events.
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)}
	}
	e.warn(about, err)
}

// ClaimFailed writes a Warning about a claim and its consumers: pods, or the PodGroup of all pods of a gang.
func (e *Events) ClaimFailed(claim *resourceapi.ResourceClaim, err error) {
	e.Warn(plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}, err)
	written := 0
	for _, user := range claim.Status.ReservedFor {
		about := corev1.ObjectReference{Namespace: claim.Namespace, Name: user.Name, UID: user.UID}
		switch (schema.GroupResource{Group: user.APIGroup, Resource: user.Resource}) {
		case schema.GroupResource{Resource: "pods"}:
			about.APIVersion, about.Kind = "v1", "Pod"
		case schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"}:
			about.APIVersion, about.Kind = "scheduling.k8s.io/v1beta1", "PodGroup"
		default:
			continue
		}
		if written++; written > maxConsumers {
			return
		}
		e.warn(about, err)
	}
}

func (e *Events) warn(about corev1.ObjectReference, err error) {
	message := err.Error()
	if about.Kind != "Node" {
		message = claimerror.TextOnClaim(err)
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "…"
	}
	e.recorder.Event(&about, corev1.EventTypeWarning, string(claimerror.ReasonOf(err)), message)
}

// Report implements notify.Reporter: it queues the error. If the queue is full, the error is only in the log and the
// metrics.
func (e *Events) Report(err error) {
	klog.Background().Error(err, "Error in the background", "reason", claimerror.ReasonOf(err))
	e.metrics.Background(claimerror.ReasonOf(err))
	select {
	case e.reports <- err:
	default:
	}
}

// Run writes an Event for each reported error until the context ends.
func (e *Events) Run(ctx context.Context) {
	defer e.broadcaster.Shutdown()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-e.reports:
			Protect(e.metrics, func() { e.notify(ctx, err) })
		}
	}
}

// notify writes Events about the claim of an error and its pods, or about the node if the claim is deleted. Another
// claim can have its name.
func (e *Events) notify(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var typed *claimerror.Error
	if errors.As(err, &typed) {
		if namespace, name, ok := strings.Cut(typed.Claim, "/"); ok {
			if claim, getErr := e.claims.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{}); getErr == nil &&
				string(claim.UID) == typed.UID {
				e.ClaimFailed(claim, err)
				return
			}
		}
	}
	e.Warn(plan.Claim{}, err)
}

// Protect runs background work and reports a panic instead of ending the plugin, without which no pod can end.
func Protect(m *metrics.Metrics, work func()) {
	defer func() {
		if p := recover(); p != nil {
			klog.Background().Error(nil, "A bug of the driver stopped background work",
				"panic", p, "stack", string(debug.Stack()))
			m.Background(claimerror.InternalFault)
		}
	}()
	work()
}

// Claims are the prepared claims, and the places for reports on them.
type Claims struct {
	engine  *devicestate.Engine
	claims  devicestate.Claims
	events  *Events
	status  *ClaimStatus
	metrics *metrics.Metrics
}

func NewClaims(
	engine *devicestate.Engine, claims devicestate.Claims, e *Events, s *ClaimStatus, m *metrics.Metrics,
) Claims {
	return Claims{engine, claims, e, s, m}
}

// lostRetry is the pause before a check of missing partitions is repeated: a scan without changes starts none.
const lostRetry = 5 * time.Second

// LostPartitions reports destroyed partitions of prepared claims, once each: in the claim's status, and in Events on
// the claim and its pods. The next successful Prepare creates them again and updates the status.
type LostPartitions struct {
	Claims
	scans    *notify.Newest[[]Missing]
	notified map[string][]string // device names by claim UID
}

// NewLostPartitions returns a LostPartitions; Run starts it.
func NewLostPartitions(c Claims, scans *notify.Newest[[]Missing]) *LostPartitions {
	return &LostPartitions{Claims: c, scans: scans}
}

// Missing is a prepared claim and those of its partitions that a scan did not find. They may be lost.
type Missing struct {
	Plan    plan.Plan
	Devices []string
}

// Run checks the missing partitions of each scan until the context ends.
func (l *LostPartitions) Run(ctx context.Context) {
	var missing []Missing
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.scans.Changed:
			if newer, ok := l.scans.Take(); ok {
				missing = newer
			}
		case <-retry:
		}
		retry = nil
		Protect(l.metrics, func() {
			if !l.check(ctx, missing) {
				retry = time.After(lostRetry)
			}
		})
	}
}

// check returns false if it is unknown of a partition whether it exists, or a claim could not be read.
func (l *LostPartitions) check(ctx context.Context, missing []Missing) (known bool) {
	known = true
	notified, suspects := map[string][]string{}, map[string]Missing{}
	var claims []plan.Claim
	for _, m := range missing {
		uid := m.Plan.Claim.UID
		if slices.Equal(l.notified[uid], m.Devices) {
			notified[uid] = m.Devices
			continue
		}
		suspects[uid], claims = m, append(claims, m.Plan.Claim)
	}
	for _, f := range l.engine.Verify(ctx, claims) {
		// Any other error leaves open whether the partition exists.
		m, suspect := suspects[f.Claim.UID]
		switch {
		case !suspect:
		case errors.Is(f.Err, plan.ErrDestroyed) && l.notify(ctx, m, f.Err):
			notified[f.Claim.UID] = m.Devices
		default:
			known = false
		}
	}
	l.notified = notified
	return known
}

// notify reports a loss. It returns false if it must be called again, because the claim could not be read.
func (l *LostPartitions) notify(ctx context.Context, m Missing, err error) bool {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(m.Plan.Claim.Namespace, m.Plan.Claim.Name))
	claim, getErr := l.claims.Get(ctx, m.Plan.Claim)
	if getErr != nil {
		logger.Error(err, "A partition is gone; its claim could not be read to report it there", "cause", getErr)
		return errors.Is(getErr, devicestate.ErrNoClaim)
	}
	logger.Error(err, "A partition is gone")
	l.events.ClaimFailed(claim, err)
	l.status.lost(claim, l.engine.Devices(m.Plan), m.Devices, err)
	return true
}
