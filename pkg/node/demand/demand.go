// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand follows the ConfigMap with the devices that the cluster asks for, which pkg/cluster/demand writes.
package demand

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
)

const (
	// endingFor is the time for which withdrawn devices stay published with a taint. Claims that the scheduler had
	// allocated before it saw the taint are in the ConfigMap or in the node's records by then.
	endingFor = 30 * time.Second
	// firstRead limits the wait for the ConfigMap at the start, and for a later look at it.
	firstRead = 2 * time.Second
	// freshFor is the time in which a new node waits for the controller's first ConfigMap. Both start together with the
	// chart.
	freshFor = 20 * time.Second
	// aloneAfter is the age of the ConfigMap at which no controller runs. The controller writes it each demand.Beat.
	aloneAfter = 10 * time.Minute
	// aloneCheck is the interval in which the node looks at the age.
	aloneCheck = time.Minute
	// maxDelay is the time over which the nodes of a large cluster write their slices after a change, delayPerNode the
	// share of one node. A claim waits for one of them only.
	maxDelay     = time.Second
	delayPerNode = 2 * time.Millisecond
	// maxDelayOfAll and delayPerNodeOfAll are the same where each node writes about ten slices: all devices appear
	// without a controller, and end after its return. An API server then has about 500 writes a second.
	maxDelayOfAll     = 2 * time.Minute
	delayPerNodeOfAll = 20 * time.Millisecond
)

// Demand follows the ConfigMap with the devices that the cluster asks for: MIG profiles, groups, monitor devices. The
// serving nodes publish them, or all nodes with a ConfigMap that names none. Of other profiles the sample nodes publish
// a placement each, or all nodes with a ConfigMap that names none. A ConfigMap that is unreadable changes nothing.
// After ten minutes without a controller the node publishes all devices, so that no claim waits for one.
type Demand struct {
	client                kubernetes.Interface
	namespace, name, node string
	reports               notify.Reporter
	changed               notify.Trigger

	mu sync.Mutex
	// asked has what this node publishes. It is nil until the first ConfigMap was read. Until freshEnd the node then
	// publishes as if no object asks for anything.
	asked    map[demand.Offer]bool
	freshEnd time.Time
	// ends holds when devices that left the ConfigMap are withdrawn; allEnd is for those that were never in it.
	ends   map[demand.Offer]time.Time
	allEnd time.Time
	// written is the controller's time of the last ConfigMap, seen the node's time of it. alone means that no
	// controller runs.
	written, seen time.Time
	alone         bool
	// nodes is the number of nodes in it.
	nodes int
	// lastError is reported once.
	lastError string
}

// New reads the ConfigMap, so that a restarted plugin publishes the same devices. It fires changed after each
// later change.
func New(
	ctx context.Context, client kubernetes.Interface, driver, namespace, name, node string, reports notify.Reporter,
	changed notify.Trigger,
) *Demand {
	a := &Demand{
		client:    client,
		namespace: namespace,
		name:      name,
		node:      node,
		reports:   reports,
		changed:   changed,
		ends:      map[demand.Offer]time.Time{},
		seen:      time.Now(),
	}
	switch found, err := a.get(ctx); {
	case err == nil:
		a.set(found)
		a.allEnd = time.Time{} // A restarted plugin publishes the same devices.
		// The node does not start the time again with each restart.
		if !a.written.IsZero() && a.written.Before(a.seen) {
			a.seen = a.written
		}
	case apierrors.IsNotFound(err):
		if a.fresh(ctx, driver) {
			a.freshEnd = time.Now().Add(freshFor)
			time.AfterFunc(freshFor, changed.Fire)
		}
	default:
		klog.FromContext(ctx).Error(err, "The devices that the cluster asks for are unknown; all are published",
			"configMap", name)
	}
	return a
}

// fresh reports whether the node has no slices of the driver. On such a node no claim has a device that the scheduler
// must know. So the node need not publish all devices, and withdraw most of them once the controller says what the
// cluster asks for.
func (a *Demand) fresh(ctx context.Context, driver string) bool {
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: a.node,
		resourceapi.ResourceSliceSelectorDriver: driver}
	list, err := a.client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: selector.String(), Limit: 1})
	return err == nil && len(list.Items) == 0
}

func (a *Demand) get(ctx context.Context) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	return a.client.CoreV1().ConfigMaps(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
}

// Placements answers for profiles of a GPU with the setting Auto.
func (a *Demand) Placements(g gpu.GPU, profile string) sharing.Placements {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch out := a.placements(profile, g, sharing.LaterPlacements); out {
	case sharing.LaterPlacements:
		switch a.placements(demand.Samples, g, sharing.LaterPlacements) {
		case sharing.AllPlacements:
			return sharing.OnePlacement
		case sharing.EndingPlacements:
			return sharing.EndingOnePlacement
		}
		return out
	case sharing.EndingPlacements:
		if a.placements(demand.Samples, g, sharing.LaterPlacements) == sharing.AllPlacements {
			return out
		}
		return sharing.EndingAllPlacements
	default:
		return out
	}
}

// Groups answers for groups with the setting Auto.
func (a *Demand) Groups() sharing.Placements {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.placements(demand.Groups, gpu.GPU{}, sharing.NoPlacement)
}

// Monitors answers for monitor devices with the setting Auto.
func (a *Demand) Monitors() sharing.Placements {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.placements(demand.Monitors, gpu.GPU{}, sharing.OnePlacement)
}

// Shares answers for shares of a GPU with the setting Auto.
func (a *Demand) Shares(g gpu.GPU) sharing.Placements {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.placements(demand.Shares, g, sharing.LaterPlacements)
}

// placements returns least for devices that no object asks for. The caller holds a.mu.
func (a *Demand) placements(what string, g gpu.GPU, least sharing.Placements) sharing.Placements {
	now, ending := time.Now(), false
	offers := []demand.Offer{{What: what}, {What: what, GPU: g.PCIAddress}}
	if g.MIG.Enabled {
		offers = append(offers, demand.Offer{What: what, GPU: demand.InMIGMode})
	}
	for _, offer := range offers {
		if a.asked[offer] {
			return sharing.AllPlacements
		}
		ending = ending || now.Before(a.ends[offer])
	}
	switch {
	case a.asked == nil && !now.Before(a.freshEnd), a.alone:
		return sharing.AllPlacements
	case ending, now.Before(a.allEnd):
		return sharing.EndingPlacements
	}
	return least
}

// Run follows the ConfigMap until the context ends.
func (a *Demand) Run(ctx context.Context) {
	informer := coreinformers.NewFilteredConfigMapInformer(a.client, a.namespace, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, a.name).String()
		})
	set := func(o any) {
		if found, ok := o.(*corev1.ConfigMap); ok && found.Name == a.name {
			a.follow(found)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // It fails only after the end.
		AddFunc: set, UpdateFunc: func(_, now any) { set(now) },
	})
	go wait.UntilWithContext(ctx, a.checkAlone, aloneCheck)
	informer.RunWithContext(ctx)
}

// delay spreads the writes of the cluster's nodes: those of some devices, or of all devices. It is always the same for
// a node in a cluster of one size. The caller holds a.mu.
func (a *Demand) delay(all bool) time.Duration {
	limit := min(maxDelay, time.Duration(a.nodes)*delayPerNode)
	if all {
		limit = min(maxDelayOfAll, time.Duration(a.nodes)*delayPerNodeOfAll)
	}
	hash := sha256.Sum256([]byte(a.node)) // Names of nodes often differ in a digit only.
	return time.Duration(float64(limit) * float64(binary.BigEndian.Uint32(hash[:])) / (1 << 32))
}

// checkAlone publishes all devices once the controller did not write the ConfigMap for a while. It looks at the
// ConfigMap first: if the API server does not answer, that says nothing about the controller.
func (a *Demand) checkAlone(ctx context.Context) {
	a.mu.Lock()
	due := a.asked != nil && !a.alone && time.Since(a.seen) >= aloneAfter
	a.mu.Unlock()
	if !due {
		return
	}
	found, err := a.get(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		return
	}
	if err == nil {
		a.follow(found)
	}
	a.mu.Lock()
	a.alone = time.Since(a.seen) >= aloneAfter
	alone, delay := a.alone, a.delay(true)
	a.mu.Unlock()
	if alone {
		a.reports.Report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: "find out for which devices the cluster asks",
			Cause: fmt.Errorf("the controller did not write the ConfigMap %s/%s for %s", a.namespace,
				a.name, aloneAfter),
			Remedy: "the node publishes all devices until the controller writes again; check the controller's pods",
		})
		time.AfterFunc(delay, a.changed.Fire)
	}
}

// follow takes the devices of a ConfigMap, and fires changed if they changed.
func (a *Demand) follow(found *corev1.ConfigMap) {
	if delay, changed := a.set(found); changed {
		time.AfterFunc(delay, a.changed.Fire)
	}
}

// set reports whether the devices changed, and when the node is to write them. Those that leave end later.
func (a *Demand) set(found *corev1.ConfigMap) (delay time.Duration, changed bool) {
	state, err := demand.Decode(found.Data)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.lastError != err.Error() {
			a.lastError = err.Error()
			a.reports.Report(&claimerror.Error{
				Reason:  claimerror.InvalidParameters,
				Attempt: "read the ConfigMap " + a.namespace + "/" + a.name,
				Cause:   err,
				Remedy: "the published devices stay as they are; delete the ConfigMap, and the controller writes " +
					"it again",
			})
		}
		return 0, false
	}
	a.lastError, a.nodes = "", state.Nodes
	returned := false
	if state.Written.IsZero() || !state.Written.Equal(a.written) {
		a.written, a.seen = state.Written, time.Now()
		returned, a.alone = a.alone, false
	}
	asked := state.OffersOf(a.node)
	if a.asked != nil && !returned && maps.Equal(a.asked, asked) {
		return 0, false
	}
	all := a.asked == nil && !time.Now().Before(a.freshEnd) || returned
	delay = a.delay(all)
	maps.DeleteFunc(a.ends, func(_ demand.Offer, end time.Time) bool { return !time.Now().Before(end) })
	end := time.Now().Add(delay + endingFor)
	if all {
		a.allEnd = end
	}
	for offer := range a.asked {
		if !asked[offer] {
			a.ends[offer] = end
		}
	}
	a.asked = asked
	time.AfterFunc(delay+endingFor, a.changed.Fire)
	return delay, true
}
