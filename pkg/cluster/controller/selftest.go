// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// The reasons of Events on the webhook's Service; docs/reference/events.md is generated from these comments.
const (
	// webhookReachable: the API server reaches the webhook, for the first time or again. Nothing is to be done.
	webhookReachable = "WebhookReachable"
	// webhookUnreachable: the API server does not reach the webhook, so it denies objects that name the driver. Follow
	// the message: mostly a firewall between API servers and pods is the cause (docs/firewalls.md).
	webhookUnreachable = "WebhookUnreachable"
)

// SelfTest checks at the start and from then on that the API server reaches the webhook, whichever instance answers.
type SelfTest struct {
	Checks  Checks
	Service string
	Events  record.EventRecorder
	// Report receives the result of each test that has one.
	Report func(reachable bool)
}

// Run tests until the context ends. A test lasts a minute at most. Failed tests are repeated with growing pauses.
func (s SelfTest) Run(ctx context.Context) error {
	const limit, least, most = time.Minute, time.Minute, 15 * time.Minute
	log := klog.FromContext(ctx)
	reachable, delay := false, least
	Repeat(ctx, nil, 0, func() time.Duration {
		test, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := s.Checks.webhook(test)
		if ctx.Err() != nil {
			return most
		}
		if err == nil {
			if !reachable {
				s.event(ctx, corev1.EventTypeNormal, webhookReachable, "The API server reaches the webhook")
				log.V(2).Info("The API server reaches the webhook")
			}
			reachable, delay = true, least
			s.Report(true)
			return most
		}
		log.Error(err, "The test of the webhook failed; trying again", "after", delay)
		if remedy := s.Checks.remedy(err); remedy != "" {
			const enough = 600 // The API limits messages of Events to 1 KiB.
			cause := err.Error()
			s.event(ctx, corev1.EventTypeWarning, webhookUnreachable,
				"The test of the webhook failed: "+cause[:min(len(cause), enough)]+". "+remedy)
			reachable = false
			s.Report(false)
		}
		pause := delay
		delay = min(2*delay, most)
		return pause
	})
	return nil
}

// event emits an Event on the webhook's Service.
func (s SelfTest) event(ctx context.Context, kind, reason, message string) {
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Checks.Namespace, Name: s.Service}
	// kubectl describe finds Events by the UID.
	if service, err := s.Checks.Client.CoreV1().Services(about.Namespace).Get(ctx, about.Name,
		metav1.GetOptions{}); err == nil {
		about.UID = service.UID
	}
	s.Events.Event(about, kind, reason, message)
}
