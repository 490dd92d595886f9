// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// createFirst creates the slices of a node that has none, and completes the owner. The controller would do the same,
// but a second later: its initInformer waits for its cache with a sleep. It runs before the controller, which then
// finds the slices by the index in their names, and completes or repairs them after an error. If its cache lags by more
// than that second, it creates them again, and later removes one of each two. The scheduler uses no pool with slices
// twice.
func (p *Publisher) createFirst(
	ctx context.Context, owner *resourceslice.Owner, pools map[string]resourceslice.Pool,
) error {
	client := p.o.Client.ResourceV1().ResourceSlices()
	found, err := client.List(ctx, metav1.ListOptions{FieldSelector: p.ownSlices()})
	if err != nil || len(found.Items) > 0 {
		return err
	}
	if !p.probed.Load() {
		return errors.New("the features of the API server are unknown")
	}
	node, err := p.o.Client.CoreV1().Nodes().Get(ctx, p.o.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	owner.UID = node.UID
	for _, name := range slices.Sorted(maps.Keys(pools)) { // Devices for use come first.
		pool := pools[name]
		for i, s := range pool.Slices {
			slice := p.object(i, name, len(pool.Slices), s)
			slice.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: new(true),
			}}
			_, err := client.Create(ctx, slice, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create slice %d of pool %s: %w", i, name, err)
			}
		}
	}
	p.synced()
	return nil
}
