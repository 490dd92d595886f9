// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"maps"
	"net/http"

	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"gpu-dra-driver/pkg/cluster/budget/enforcement"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// addBudgets adds the reviews under GPU budgets to the webhooks, and the leader's count. watch, if there is one, wraps
// the handler of the whole server.
func addBudgets(
	p *program, custom dynamic.Interface, webhooks map[string]http.Handler, m *metrics.Reviews,
) (watch func(http.Handler) http.Handler, err error) {
	if !p.Budgets || !p.Webhook {
		return nil, nil
	}
	var path *enforcement.ReviewPath
	if p.ClientAuthorities == nil {
		path = enforcement.NewReviewPath(p.client, p.DriverName, p.WebhookConfiguration)
		watch, err = path.Watch, p.Add(always{path.Run})
		p.ready.Checks["path"] = func(*http.Request) error { return path.Synced() }
	}
	reviews := enforcement.New(p.DriverName, custom, p.client.ResourceV1(), p.control, path)
	maps.Copy(webhooks, reviews.Webhooks(m))
	keeper := enforcement.NewKeeper(reviews, p.control)
	ctrlmetrics.Registry.MustRegister(metrics.Budgets(keeper.Metrics))
	return watch, errors.Join(err, p.Add(manager.RunnableFunc(keeper.Run)))
}
