// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nobudgets

package main

import (
	"errors"
	"maps"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"gpu-dra-driver/pkg/cluster/budget/enforcement"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// addBudgets adds the reviews under GPU budgets to the webhooks, and the leader's count.
func addBudgets(p *program) (err error) {
	if !p.Budgets || !p.Webhook {
		return nil
	}
	var path *enforcement.ReviewPath
	if p.ClientAuthorities == nil {
		path = enforcement.NewReviewPath(p.client, p.DriverName, p.WebhookConfiguration)
		p.watcher, err = path, p.Add(always{path.Run})
		p.ready.Checks["path"] = func(*http.Request) error { return path.Synced() }
	}
	reviews := enforcement.New(p.DriverName, p.custom, p.client.ResourceV1(), p.control, path)
	maps.Copy(p.webhooks, reviews.Webhooks(p.reviews))
	keeper := enforcement.NewKeeper(reviews, p.control)
	ctrlmetrics.Registry.MustRegister(metrics.Budgets(keeper.Metrics))
	return errors.Join(err, p.Add(manager.RunnableFunc(keeper.Run)))
}
