// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package reporting tells people about claims and the node, off the path of Prepare: by Events, by status.devices of
// claims, and about partitions that vanished under prepared claims.
//
// Nothing waits for it. While the API server is away, Events queue and statuses are tried again.
package reporting

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/record"
	draclient "k8s.io/dynamic-resource-allocation/client"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

const (
	// maxMessage is the limit of the events API (events.k8s.io/v1, note), in bytes.
	maxMessage = 1024
	// maxPods bounds the Events of one failure: a claim can be reserved for 256 pods.
	maxPods = 16
)

// Events writes Events about failures. Its methods do not block and may be called at once: client-go's broadcaster counts
// repeated Events up, drops bursts, and queues while the API server is away.
type Events struct {
	node        string
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	claims      resourcev1.ResourceClaimsGetter
	metrics     *metrics.Metrics
	reports     chan error
}

// NewEvents makes the Events of one node's plugin; component is their source. Run ends them.
func NewEvents(client kubernetes.Interface, node, component string, m *metrics.Metrics) *Events {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Events{
		node: node, broadcaster: b, claims: draclient.New(client), metrics: m, reports: make(chan error, 64),
		recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node}),
	}
}

// Warn writes a Warning about a claim, or about the node where the claim's name is not known.
func (e *Events) Warn(claim plan.Claim, err error) {
	about := corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: types.UID(claim.UID),
	}
	if claim.Name == "" {
		// kubectl describe looks for a Node's Events by its name as UID, which the kubelet's have too.
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)}
	}
	e.warn(about, err)
}

// ClaimFailed writes a Warning about a claim and about its pods.
func (e *Events) ClaimFailed(claim *resourceapi.ResourceClaim, err error) {
	e.Warn(plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}, err)
	pods := 0
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" || pods == maxPods {
			continue
		}
		pods++
		e.warn(corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: user.Name, UID: user.UID}, err)
	}
}

func (e *Events) warn(about corev1.ObjectReference, err error) {
	message := err.Error()
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "…"
	}
	e.recorder.Event(&about, corev1.EventTypeWarning, string(claimerror.ReasonOf(err)), message)
}

// Report takes an error that no caller receives. Errors beyond the queue's size are in the log and the metrics only.
func (e *Events) Report(err error) {
	klog.Background().Error(err, "Needs a person's attention", "reason", claimerror.ReasonOf(err))
	e.metrics.Background(claimerror.ReasonOf(err))
	select {
	case e.reports <- err:
	default:
	}
}

// Run turns reports into Events until the context ends.
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

// notify finds the claim that an error names, whose UID and pods an Event needs. Without it the Event is the node's.
func (e *Events) notify(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var typed *claimerror.Error
	if errors.As(err, &typed) {
		if namespace, name, ok := strings.Cut(typed.Claim, "/"); ok {
			if claim, getErr := e.claims.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{}); getErr == nil {
				e.ClaimFailed(claim, err)
				return
			}
		}
	}
	e.Warn(plan.Claim{}, err)
}

// Protect keeps a bug in one piece of background work from ending the plugin, on which the end of other pods depends.
// The next round tries that piece again.
func Protect(m *metrics.Metrics, work func()) {
	defer func() {
		if p := recover(); p != nil {
			klog.Background().Error(nil, "Background work met a bug of the driver", "panic", p, "stack", string(debug.Stack()))
			m.Background(claimerror.InternalFault)
		}
	}()
	work()
}
