// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
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
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

const (
	// maxMessage is what the events API takes (events.k8s.io/v1, note).
	maxMessage = 1024
	// maxPods bounds the Events of one failure: a claim can be reserved for 256 pods.
	maxPods = 16
)

// events tells people what failed. Nothing waits for it: repeated Events are counted up and bursts are dropped by
// client-go's broadcaster, and while the API server is away they queue.
type events struct {
	node        string
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	claims      resourcev1.ResourceClaimsGetter
	metrics     *metrics.Metrics
	reports     chan error
}

func newEvents(client kubernetes.Interface, claims resourcev1.ResourceClaimsGetter, node, component string, m *metrics.Metrics) *events {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &events{
		node: node, broadcaster: b, claims: claims, metrics: m, reports: make(chan error, 64),
		recorder: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node}),
	}
}

// warn writes a Warning about an object.
func (e *events) warn(about *corev1.ObjectReference, err error) {
	message := err.Error()
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "…"
	}
	e.recorder.Event(about, corev1.EventTypeWarning, string(claimerror.ReasonOf(err)), message)
}

// claimFailed tells those who look at the claim and those who look at its pods.
func (e *events) claimFailed(claim *resourceapi.ResourceClaim, err error) {
	e.warn(claimRef(plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}), err)
	pods := 0
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" || pods == maxPods {
			continue
		}
		pods++
		e.warn(&corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: user.Name, UID: user.UID,
		}, err)
	}
}

// report takes what the engine found without a caller. It never blocks: what does not fit is in the log.
func (e *events) report(err error) {
	klog.Background().Error(err, "Needs a person's attention", "reason", claimerror.ReasonOf(err))
	e.metrics.Background(claimerror.ReasonOf(err))
	select {
	case e.reports <- err:
	default:
	}
}

// run turns reports into Events until the context ends.
func (e *events) run(ctx context.Context) {
	defer e.broadcaster.Shutdown()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-e.reports:
			protect(e.metrics, func() { e.tell(ctx, err) })
		}
	}
}

// tell finds the claim that an error names, for an Event needs its UID to be found, and its pods. Otherwise the node must do.
func (e *events) tell(ctx context.Context, err error) {
	var said *claimerror.Error
	if !errors.As(err, &said) {
		e.warn(nodeRef(e.node), err)
		return
	}
	namespace, name, ok := strings.Cut(said.Claim, "/")
	if !ok {
		e.warn(nodeRef(e.node), err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	claim, getErr := e.claims.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if getErr != nil {
		e.warn(nodeRef(e.node), err)
		return
	}
	e.claimFailed(claim, err)
}

func claimRef(c plan.Claim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: c.Namespace, Name: c.Name, UID: types.UID(c.UID),
	}
}

// nodeRef refers to a Node as kubectl describe looks for it: by the name as UID, which the kubelet's Events have too.
func nodeRef(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}
