// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nopreemption

package main

import (
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"gpu-dra-driver/pkg/cluster/preempt"
)

// addPreemption adds the evictions for pods of higher priority.
func addPreemption(p *program) error {
	if !p.Preemption {
		return nil
	}
	o := preempt.Options{
		Driver:     p.DriverName,
		Violate:    p.ViolateBudgets,
		Namespaces: append(p.ExemptNamespaces, p.PodNamespace),
		Classes:    p.ExemptClasses,
		Metrics:    p.client.Discovery().RESTClient(),
	}
	if p.ExemptGroups {
		o.Groups = p.custom
	}
	return p.Add(manager.RunnableFunc(preempt.New(p.client, p.rules, p.control, p.recorder, o).Run))
}
