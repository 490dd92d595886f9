// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// Budgets reviews the creation of claims under GPU budgets, on every instance. It writes a reservation into the budget
// of the namespace before it allows a claim. It is safe for concurrent use.
type Budgets struct {
	driver    string
	client    dynamic.NamespaceableResourceInterface
	resources resourcev1.ResourceV1Interface
	view      viewer
	// path authenticates API servers. Without it, client certificates do.
	path *ReviewPath

	counter atomic.Pointer[viewCounter]
	mu      sync.Mutex
	queues  map[string]*queue
}

// viewCounter is the counter of a view.
type viewCounter struct {
	of *admission.ClusterView
	*budget.Counter
}

// viewer has the current view of the cluster.
type viewer interface {
	ClusterView() *admission.ClusterView
}

// New returns the reviews of a driver. Without a path, they need a client certificate.
func New(
	driver string, client dynamic.Interface, resources resourcev1.ResourceV1Interface, view viewer, path *ReviewPath,
) *Budgets {
	return &Budgets{
		driver:    driver,
		client:    client.Resource(v1alpha1.GroupVersionResource(driver)),
		resources: resources,
		view:      view,
		path:      path,
		queues:    map[string]*queue{},
	}
}

// Path is the path of reviews in the chart.
const Path = "/budget"

// Webhooks returns the handlers of the reviews by path.
func (b *Budgets) Webhooks(m *metrics.Reviews) map[string]http.Handler {
	reviewed := controller.Webhook(b, m, "budget", true)
	if b.path != nil {
		reviewed = b.path.Only(reviewed)
	} else {
		reviewed = controller.OnlyClients(reviewed)
	}
	// Without a path in the configuration, API servers use /.
	return map[string]http.Handler{Path: reviewed, Path + "/": reviewed, "/{$}": reviewed}
}

// count returns the counter of the current view.
func (b *Budgets) count() *budget.Counter {
	v := b.view.ClusterView()
	if known := b.counter.Load(); known != nil && known.of == v {
		return known.Counter
	}
	made := &viewCounter{v, budget.NewCounter(b.driver, v.Asker, v.Pools())}
	b.counter.Store(made)
	return made.Counter
}

// Limits of a review. The API server waits five seconds.
const (
	// countFor is the processor time in which the cost of a claim is counted, and costWithin its time by the wall.
	countFor   = time.Second
	costWithin = 2 * time.Second
	reserveFor = 4 * time.Second
	attempts   = 12
	// countedWithin is the time that a review waits for the first count of a new or changed budget, by reading it every
	// countedPoll. The leader counts within a moment.
	countedWithin = 1500 * time.Millisecond
	countedPoll   = 50 * time.Millisecond
	// queueIdle is the time for which a queue stays after its last claim. Its namespace can be gone since then.
	queueIdle = 5 * time.Second
)

// Review implements reviewer.
func (b *Budgets) Review(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	answer := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	if r.Operation != admissionv1.Create || r.SubResource != "" {
		return answer
	}
	refuse := func(err error) *admissionv1.AdmissionResponse {
		status := metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusForbidden,
			Reason:  metav1.StatusReasonForbidden,
			Message: err.Error(),
		}
		if !errors.As(err, new(budget.Refused)) { // A second attempt can succeed.
			status.Code, status.Reason = http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
		}
		answer.Allowed, answer.Result = false, &status
		return answer
	}
	switch r.Resource.Resource {
	case "resourceclaims", "resourceclaimtemplates":
		claim, err := admission.ReadClaim(r)
		if err != nil {
			return refuse(budget.Refused(err.Error()))
		}
		cost, failed := b.largest(ctx, claim.Spec.Devices)
		if failed == nil && cost.Zero() {
			return answer
		}
		if r.Resource.Resource == "resourceclaims" && failed == nil && !ptr.Deref(r.DryRun, false) {
			err = b.reserve(ctx, r.Namespace, budget.Claim{
				Name: cmp.Or(claim.Name, r.Name, string(r.UID)), UID: cmp.Or(claim.UID, r.UID), Charge: cost,
				For: entry(r.UserInfo.Username, claim),
			})
		} else {
			err = b.check(ctx, r.Namespace, cost, failed)
		}
		if err != nil && failed == nil && r.Resource.Resource == "resourceclaimtemplates" {
			// Its claims are counted when they are created, and there can be room then.
			answer.Warnings = append(answer.Warnings,
				fmt.Sprintf("now, each claim of this template is refused: %v", err))
			return answer
		}
		if err != nil {
			return refuse(err)
		}
	case "pods":
		if err := b.pod(ctx, r); err != nil {
			return refuse(err)
		}
	}
	return answer
}

// makers are the accounts under which Kubernetes makes claims for pods.
var makers = []string{
	"system:serviceaccount:kube-system:resource-claim-controller",
	"system:kube-controller-manager", "system:kube-scheduler",
}

// entry names the pod and the entry of its spec for which Kubernetes makes a claim, or is empty. From other accounts
// the owner of a claim is a mere assertion.
func entry(account string, claim *resourceapi.ResourceClaim) string {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || !slices.Contains(makers, account) {
		return ""
	}
	return fmt.Sprintf("%s/%s", owner.UID, claim.Annotations[resourceapi.PodResourceClaimAnnotation])
}

// limited returns a context that ends by the limits of a count.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(ctx, costWithin)
	ctx, cancel := ask.WithProcessorTime(ctx, countFor)
	return ctx, func() {
		cancel()
		stop()
	}
}

func (b *Budgets) largest(ctx context.Context, devices resourceapi.DeviceClaim) (budget.Charge, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	return b.count().Largest(ctx, devices)
}

// check returns why the budget of a namespace has no room; nil without a budget. failed is the reason why the cost is
// unknown.
func (b *Budgets) check(ctx context.Context, namespace string, cost budget.Charge, failed error) error {
	found, err := b.counted(ctx, namespace)
	switch {
	case err != nil || found == nil:
		return err
	case failed != nil:
		return explained(found, failed)
	}
	return budget.Check(found, cost)
}

func explained(b *v1alpha1.GPUBudget, failed error) error {
	text := fmt.Sprintf("GPU budget %s/%s: %v", b.Namespace, b.Name, failed)
	if errors.As(failed, new(budget.Refused)) {
		return budget.Refused(text)
	}
	return errors.New(text)
}

// get reads the budget of a namespace; nil without one.
func (b *Budgets) get(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	u, err := b.client.Namespace(namespace).Get(ctx, v1alpha1.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the GPU budget of namespace %s: %w", namespace, err)
	}
	return budgetOf(u)
}

// counted reads the budget of a namespace, and waits a moment for its count: a file can have a budget and the first
// pods under it. The budget that it returns may still not be counted.
func (b *Budgets) counted(ctx context.Context, namespace string) (*v1alpha1.GPUBudget, error) {
	limit := time.NewTimer(countedWithin)
	defer limit.Stop()
	for {
		found, err := b.get(ctx, namespace)
		if err != nil || found == nil || budget.IsCounted(found) {
			return found, err
		}
		select {
		case <-time.After(countedPoll):
		case <-limit.C:
			return found, nil
		case <-ctx.Done():
			return found, nil
		}
	}
}

func budgetOf(u *unstructured.Unstructured) (*v1alpha1.GPUBudget, error) {
	out := &v1alpha1.GPUBudget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("GPU budget %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return out, nil
}

// write stores the status of a budget on top of the version that was read.
func (b *Budgets) write(ctx context.Context, of *v1alpha1.GPUBudget) (*v1alpha1.GPUBudget, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(of)
	if err != nil {
		return nil, err
	}
	u, err := b.client.Namespace(of.Namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: content},
		metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return budgetOf(u)
}

// pod checks the extended resources and the templates of a pod, so that its author reads the reason. It reserves
// nothing: the claims that are made for the pod are reviewed again.
func (b *Budgets) pod(ctx context.Context, r *admissionv1.AdmissionRequest) error {
	var pod corev1.Pod
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return budget.Refused(fmt.Sprintf("the object cannot be read as a pod: %v", err))
	}
	short, cancel := limited(ctx)
	defer cancel()
	cost, failed := b.count().Pod(short, pod.Spec)
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName == nil || failed != nil {
			continue
		}
		template, err := b.resources.ResourceClaimTemplates(r.Namespace).Get(short, *c.ResourceClaimTemplateName,
			metav1.GetOptions{})
		if err != nil {
			continue // It can be created later than the pod. In any case its claims are reviewed.
		}
		one, err := b.count().Largest(short, template.Spec.Spec.Devices)
		cost, failed = cost.Plus(one), err
	}
	if failed == nil && cost.Zero() {
		return nil
	}
	return b.check(ctx, r.Namespace, cost, failed)
}

// queue collects the claims of a namespace that wait for a reservation. One write to the budget serves all of them.
type queue struct {
	waiting []*waitingClaim
	busy    bool
	// idle removes the queue; nil before its first claims are answered.
	idle *time.Timer
	// last is the budget as the last write of this instance left it.
	last *v1alpha1.GPUBudget
}

// waitingClaim is a claim that waits for a reservation.
type waitingClaim struct {
	budget.Claim
	done chan error
}

// reserve returns after the reservation is stored, or returns why there is none.
func (b *Budgets) reserve(ctx context.Context, namespace string, claim budget.Claim) error {
	w := &waitingClaim{claim, make(chan error, 1)}
	b.mu.Lock()
	d := b.queues[namespace]
	if d == nil {
		d = &queue{}
		b.queues[namespace] = d
	}
	d.waiting = append(d.waiting, w)
	if !d.busy {
		d.busy = true
		if d.idle != nil {
			d.idle.Stop()
		}
		go b.serve(namespace, d)
	}
	b.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve reserves for the claims in a queue until none waits.
func (b *Budgets) serve(namespace string, d *queue) {
	for {
		b.mu.Lock()
		batch := d.waiting
		if d.waiting = nil; len(batch) == 0 {
			d.busy = false
			if d.last == nil { // A namespace without a budget needs no queue.
				delete(b.queues, namespace)
			} else {
				d.idle = time.AfterFunc(queueIdle, func() { b.remove(namespace, d) })
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		results := b.reserveAll(namespace, d, batch)
		for i, w := range batch {
			w.done <- results[i]
		}
	}
}

// remove removes a queue in which no claim waits.
func (b *Budgets) remove(namespace string, d *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !d.busy && b.queues[namespace] == d {
		delete(b.queues, namespace)
	}
}

// reserveAll answers a batch. Each refusal is by a budget that was read after the claims were asked for.
func (b *Budgets) reserveAll(namespace string, d *queue, batch []*waitingClaim) (results []error) {
	ctx, cancel := context.WithTimeout(context.Background(), reserveFor)
	defer cancel()
	results = make([]error, len(batch))
	fail := func(err error) []error {
		d.last = nil
		for i := range results {
			results[i] = err
		}
		return results
	}
	defer func() {
		if p := recover(); p != nil {
			fail(fmt.Errorf("a bug of the controller: %v", p))
		}
	}()
	var err error
	for attempt := range attempts {
		fresh := d.last == nil
		if fresh {
			if d.last, err = b.counted(ctx, namespace); err != nil {
				return fail(err)
			}
			if d.last == nil {
				return fail(nil)
			}
		}
		next, changed, refused := copyOf(d.last), false, false
		for i, w := range batch {
			results[i] = budget.Reserve(next, w.Claim, time.Now())
			changed, refused = changed || results[i] == nil, refused || results[i] != nil
		}
		if refused && !fresh { // Claims can have gone since.
			d.last = nil
			continue
		}
		if !changed {
			return results
		}
		if d.last, err = b.write(ctx, next); err == nil {
			return results
		}
		d.last = nil
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fail(fmt.Errorf("reserve GPUs in the budget of namespace %s: %w", namespace, err))
		}
		// The other instance, or the leader, was faster.
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(time.Duration(attempt+1) * 4 * time.Millisecond)):
		}
	}
	klog.FromContext(ctx).Info("The GPU budget changes faster than it can be written", "namespace", namespace, "err",
		err)
	return fail(fmt.Errorf("the GPU budget of namespace %s changes faster than it can be written: try again",
		namespace))
}

func copyOf(b *v1alpha1.GPUBudget) *v1alpha1.GPUBudget {
	out := *b
	out.Status.Reservations = append([]v1alpha1.Reservation(nil), b.Status.Reservations...)
	out.Status.Conditions = append([]metav1.Condition(nil), b.Status.Conditions...)
	return &out
}
