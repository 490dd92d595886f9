// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/metrics"
	"gpu-dra-driver/pkg/cluster/read"
)

// Keeper counts the claims of namespaces with a budget, on the leader.
type Keeper struct {
	*Budgets
	cluster *controller.Controller
	budgets cache.SharedIndexInformer

	mu sync.Mutex
	// dirty are the namespaces to count. seen is the newest resourceVersion of a claim that the handlers have received:
	// the cache has all changes until then.
	dirty sets.Set[string]
	seen  string
	wake  chan struct{}
	// costs has the last known cost of claims. It counts on while no node publishes their devices.
	costs  map[types.UID]lastCost
	forgot time.Time
	// ages has the ages of reservations by namespace. renewed is when the path of reviews was last renewed.
	ages    map[string]budget.Ages
	renewed time.Time
	// last is the view of the last pass. With another one, the costs can differ.
	last *admission.ClusterView
}

// NewKeeper returns a Keeper beside a controller, which it follows. The controller does not run yet.
func NewKeeper(b *Budgets, cluster *controller.Controller) *Keeper {
	k := &Keeper{
		Budgets: b,
		cluster: cluster,
		budgets: read.Informer(b.client, b.client, "", &unstructured.Unstructured{}, trimBudget),
		dirty:   sets.New[string](),
		wake:    make(chan struct{}, 1),
		costs:   map[types.UID]lastCost{},
		ages:    map[string]budget.Ages{},
	}
	cluster.Follow(k.wake)
	return k
}

func trimBudget(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
		u.SetAnnotations(nil)
	}
	return object, nil
}

const (
	// pause is the time for which changes of claims are collected.
	pause = 50 * time.Millisecond
	// retry is the pause after a failed write, and interval the pause between looks at old reservations.
	retry, interval = 500 * time.Millisecond, 30 * time.Second
	// forgetInterval is the time for which the cost of a claim that is gone is remembered.
	forgetInterval = 5 * time.Minute
)

// Run keeps the status of all budgets up to date until the context ends. Only the leader runs it.
func (k *Keeper) Run(ctx context.Context) error {
	if err := errors.Join(
		controller.On(k.cluster.Claims, func(claim *resourceapi.ResourceClaim, _ bool) {
			k.changed(claim.Namespace, claim.ResourceVersion)
		}),
		controller.On(k.budgets, func(u *unstructured.Unstructured, _ bool) { k.changed(u.GetNamespace(), "") }),
	); err != nil {
		return nil // It fails only after the end.
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, k.budgets) || !cache.WaitForCacheSync(ctx.Done(), k.cluster.Claims.HasSynced) {
		return nil
	}
	controller.Repeat(ctx, k.wake, pause, func() time.Duration {
		if err := k.pass(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A GPU budget was not counted; trying again")
			return retry
		}
		return interval
	})
	return nil
}

// changed has a namespace counted. version belongs to a claim, or is empty.
func (k *Keeper) changed(namespace, version string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if version != "" && older(k.seen, version) {
		k.seen = version
	}
	if version != "" && !k.known(namespace) {
		return // The common case: no budget.
	}
	k.dirty.Insert(namespace)
	controller.Trigger(k.wake)
}

func (k *Keeper) known(namespace string) bool {
	_, exists, _ := k.budgets.GetStore().GetByKey(cache.NewObjectName(namespace, v1alpha1.Name).String())
	return exists
}

// older reports whether a resourceVersion is older than another one. An unknown one is the oldest.
func older(a, b string) bool {
	if a == "" || b == "" {
		return a == "" && b != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// pass counts the namespaces that have changed, and those with old reservations.
func (k *Keeper) pass(ctx context.Context) error {
	now := time.Now()
	budgets := map[string]*v1alpha1.GPUBudget{}
	for _, u := range read.All[*unstructured.Unstructured](k.budgets.GetStore()) {
		b, err := budgetOf(u)
		if err != nil {
			klog.FromContext(ctx).Error(err, "A GPU budget cannot be read")
			continue
		}
		budgets[b.Namespace] = b
	}
	k.mu.Lock()
	dirty, seen := k.dirty, k.seen // Before the claims are read.
	k.dirty = sets.New[string]()
	k.mu.Unlock()
	for namespace := range k.ages {
		if budgets[namespace] == nil {
			delete(k.ages, namespace)
		}
	}
	if len(budgets) > 0 && k.path != nil && now.Sub(k.renewed) >= renewInterval {
		k.renewed = now
		k.path.Renew()
	}
	view := k.view.ClusterView()
	for namespace, b := range budgets {
		k.ages[namespace] = k.ages[namespace].Next(b, now)
		if view != k.last || len(k.ages[namespace].Old(b, now)) > 0 || b.Status.CountedVersion == "" {
			dirty.Insert(namespace)
		}
	}
	k.last = view
	if len(budgets) == 0 || dirty.Len() == 0 {
		return nil
	}
	claims := map[string][]*resourceapi.ResourceClaim{}
	for _, claim := range read.All[*resourceapi.ResourceClaim](k.cluster.Claims.GetStore()) {
		if dirty.Has(claim.Namespace) && budgets[claim.Namespace] != nil {
			claims[claim.Namespace] = append(claims[claim.Namespace], claim)
		}
	}
	pools := budget.PoolsOf(k.cluster.Pools())
	if now.Sub(k.forgot) > forgetInterval {
		k.forgot = now
		k.forget()
	}
	var errs []error
	for namespace := range dirty {
		b := budgets[namespace]
		if b == nil {
			continue
		}
		if err := k.count(ctx, b, claims[namespace], seen, pools, now); err != nil {
			errs = append(errs, err)
			k.changed(namespace, "")
		}
	}
	return errors.Join(errs...)
}

// count writes the status of a budget, if it changes.
func (k *Keeper) count(
	ctx context.Context, b *v1alpha1.GPUBudget, claims []*resourceapi.ResourceClaim, seen string, pools budget.Pools,
	now time.Time,
) error {
	if seen == "" || older(seen, b.Status.CountedVersion) {
		// An earlier leader, or a list, has seen more than the cache of this one.
		var err error
		if claims, seen, err = k.list(ctx, b.Namespace); err != nil {
			return err
		}
	}
	counted := budget.Counted{
		Claims:  map[types.UID]budget.Claim{},
		Version: seen,
		Ages:    k.ages[b.Namespace],
		Gone:    map[types.UID]bool{},
	}
	for _, claim := range claims {
		if older(counted.Version, claim.ResourceVersion) { // The handlers receive it later than the cache.
			counted.Version = claim.ResourceVersion
		}
		cost, err := k.charge(ctx, claim, pools)
		if err != nil {
			return fmt.Errorf("count claim %s/%s for the GPU budget: %w", claim.Namespace, claim.Name, err)
		}
		counted.Claims[claim.UID] = budget.Claim{Name: claim.Name, UID: claim.UID, Charge: cost}
	}
	for _, r := range counted.Ages.Old(b, now) {
		claim, err := k.resources.ResourceClaims(b.Namespace).Get(ctx, r.Claim, metav1.GetOptions{})
		counted.Gone[r.UID] = apierrors.IsNotFound(err) || err == nil && claim.UID != r.UID
	}
	for attempt := range attempts {
		next := copyOf(b)
		budget.Count(next, counted, now)
		if same(b.Status, next.Status) {
			return nil
		}
		_, err := k.write(ctx, next)
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || attempt == attempts-1:
			return fmt.Errorf("write the status of GPU budget %s/%s: %w", b.Namespace, b.Name, err)
		}
		// Reservations that the newer version has and the claims do not cover stay.
		if b, err = k.get(ctx, b.Namespace); err != nil || b == nil {
			return err
		}
		if older(counted.Version, b.Status.CountedVersion) {
			return fmt.Errorf("GPU budget %s/%s: another leader counts it", b.Namespace, b.Name)
		}
	}
	return nil
}

// same reports whether two states differ at most in the version. Each change of the cluster would cause a write
// otherwise.
func same(a, b v1alpha1.Status) bool {
	if a.CountedVersion != "" {
		a.CountedVersion = b.CountedVersion
	}
	return equality.Semantic.DeepEqual(a, b)
}

// list reads the claims of a namespace from the API server, and keeps as little of them as the cache.
func (k *Keeper) list(
	ctx context.Context, namespace string,
) (claims []*resourceapi.ResourceClaim, version string, err error) {
	for page, err := range read.Pages(ctx, metav1.ListOptions{Limit: read.TenantsPageSize},
		k.resources.ResourceClaims(namespace).List) {
		if err != nil {
			return nil, "", fmt.Errorf("list the claims of namespace %s: %w", namespace, err)
		}
		for i := range page.Items {
			trimmed, _ := controller.TrimClaim(page.Items[i].DeepCopy()) // Of a page nothing else stays.
			if claim, ok := bounded.Keep(trimmed).(*resourceapi.ResourceClaim); ok {
				claims = append(claims, claim)
			}
		}
		version = page.ResourceVersion
	}
	return claims, version, nil
}

// lastCost is the last known cost of a claim.
type lastCost struct {
	budget.Charge
	// version is the resourceVersion of the claim, and by the counter; nil for an allocated claim, whose cost does not
	// change with the cluster.
	version string
	by      *budget.Counter
}

// charge returns the cost of a claim that exists. It is never refused: what cannot be counted costs what is known of
// it. The error is budget.ErrTime.
func (k *Keeper) charge(
	ctx context.Context, claim *resourceapi.ResourceClaim, pools budget.Pools,
) (budget.Charge, error) {
	counter := k.Budgets.count()
	known, counted := k.costs[claim.UID]
	if counted && known.version == claim.ResourceVersion && (known.by == nil || known.by == counter) {
		return known.Charge, nil
	}
	if claim.Status.Allocation != nil {
		if cost, ok := counter.Allocated(claim.Status.Allocation, pools); ok {
			k.costs[claim.UID] = lastCost{cost, claim.ResourceVersion, nil}
			return cost, nil
		}
		if counted {
			return known.Charge, nil // The node of its devices is away.
		}
	}
	devices, err := k.devices(ctx, claim)
	if err != nil {
		return budget.Charge{}, err
	}
	cost, err := k.largest(ctx, devices)
	if err != nil || cost.Unknown != "" {
		if counted {
			return known.Charge, nil
		}
		if errors.Is(err, budget.ErrTime) {
			return cost, err
		}
		return cost, nil
	}
	k.costs[claim.UID] = lastCost{cost, claim.ResourceVersion, counter}
	return cost, nil
}

// devices returns the requests of a claim. Those of one that is too large for the cache are read, once for each
// version: its cost without its selectors and amounts would be another one.
func (k *Keeper) devices(ctx context.Context, claim *resourceapi.ResourceClaim) (resourceapi.DeviceClaim, error) {
	if !bounded.TooLarge(claim) {
		return claim.Spec.Devices, nil
	}
	whole, err := k.resources.ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && whole.UID != claim.UID {
		return resourceapi.DeviceClaim{}, nil // It is gone, and an event about it follows.
	}
	if err != nil {
		return resourceapi.DeviceClaim{}, fmt.Errorf("read the claim, which is too large for the cache: %w", err)
	}
	return whole.Spec.Devices, nil
}

// forget drops the costs of claims that are gone.
func (k *Keeper) forget() {
	known := sets.New[types.UID]()
	for _, claim := range read.All[*resourceapi.ResourceClaim](k.cluster.Claims.GetStore()) {
		known.Insert(claim.UID)
	}
	for uid := range k.costs {
		if !known.Has(uid) {
			delete(k.costs, uid)
		}
	}
}

// maxSeries limits the series of metrics.
const maxSeries = 1000

// Metrics returns the use of all budgets; none on an instance that does not lead.
func (k *Keeper) Metrics() (out []metrics.Budget) {
	for _, u := range read.All[*unstructured.Unstructured](k.budgets.GetStore()) {
		b, err := budgetOf(u)
		if err != nil {
			continue
		}
		for _, r := range budget.Ratios(b) {
			out = append(out, metrics.Budget{
				Namespace: b.Namespace,
				Limit:     r.Limit,
				Model:     r.Model,
				Used:      r.Used,
				Hard:      r.Hard,
			})
		}
	}
	slices.SortFunc(out, metrics.Budget.Compare)
	return out[:min(len(out), maxSeries)]
}
