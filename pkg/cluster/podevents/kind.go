// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
)

// kind are pods that get the same answer: they differ only in their names, and in those of their generated claims.
type kind struct {
	pods []*corev1.Pod
	// answered is the time of the answer, and zero without one.
	answered time.Time
	// text is the answer. It is empty if there is nothing to write. about is the pod that it was asked for.
	text  string
	about string
	// lacks means that the pods have a node, and not the devices that they ask for.
	lacks bool
	// woken counts the Wakes for these pods.
	woken int
}

// cachedKey is the key of a pod, for the versions of the objects that it was made from.
type cachedKey struct {
	versions string
	key      uint64
}

// lackingPods returns the pods with a node that lack devices of the driver, as of the last refresh.
func (k *Keeper) lackingPods(objects controller.Objects, now time.Time) []*corev1.Pod {
	if !k.lackingAt.IsZero() && now.Sub(k.lackingAt) < maxAnswerAge {
		return k.lacking
	}
	k.lacking, k.lackingAt = nil, now
	nodes := map[string]*corev1.Node{}
	for _, n := range objects.Nodes {
		nodes[n.Name] = n
	}
	classes := waiting.NewClasses(k.o.Driver, objects.Classes)
	for _, pod := range objects.Pods {
		if now.Sub(pod.CreationTimestamp.Time) < Patience {
			continue
		}
		missing, _ := classes.Lacks(pod, nodes[pod.Spec.NodeName])
		if len(missing) > 0 || len(waiting.Unallocated(pod, k.cluster)) > 0 {
			k.lacking = append(k.lacking, pod)
		}
	}
	return k.lacking
}

// group finds the pods that wait for long enough, and their kinds. It forgets what is no longer needed.
func (k *Keeper) group(objects controller.Objects, now time.Time) {
	for _, one := range k.kinds {
		one.pods = nil
	}
	keys, spaces := map[types.UID]cachedKey{}, map[string]bool{}
	long := slices.Clone(k.lackingPods(objects, now))
	for _, pod := range objects.Pods {
		if waiting.Waits(pod) && now.Sub(waiting.SaidOf(pod).At) >= Patience {
			long = append(long, pod)
		}
	}
	for _, pod := range long {
		key := k.keyOf(pod)
		keys[pod.UID], spaces[pod.Namespace] = key, true
		one := k.kinds[key.key]
		if one == nil {
			one = &kind{lacks: pod.Spec.NodeName != ""}
			k.kinds[key.key] = one
		}
		one.pods = append(one.pods, pod)
	}
	k.keys = keys
	maps.DeleteFunc(k.kinds, func(_ uint64, one *kind) bool { return len(one.pods) == 0 })
	owners := map[types.UID]bool{}
	for _, o := range k.owners {
		owners[o.about.UID] = true
	}
	maps.DeleteFunc(k.written, func(id types.UID, _ written) bool { return keys[id] == cachedKey{} && !owners[id] })
	k.asked.Keep(spaces)
	maps.DeleteFunc(k.templates, func(_ types.NamespacedName, t template) bool { return now.Sub(t.at) > maxAnswerAge })
}

var seed = maphash.MakeSeed()

// keyOf returns a number that is equal for pods of one kind. They are alike, and in one namespace. The scheduler says
// the same of them, and their claims are in the same state.
func (k *Keeper) keyOf(pod *corev1.Pod) cachedKey {
	versions := pod.ResourceVersion
	refs := waiting.References(pod, k.cluster)
	claims := make([]*resourceapi.ResourceClaim, len(refs))
	for i, ref := range refs {
		versions += " -"
		if claims[i] = ref.Claim; ref.Claim != nil {
			versions += string(ref.Claim.UID) + " " + ref.Claim.ResourceVersion
		}
	}
	refusals := k.refusals(pod)
	for _, e := range refusals {
		versions += " " + e.ResourceVersion
	}
	if known, ok := k.keys[pod.UID]; ok && known.versions == versions {
		return known
	}
	var h maphash.Hash
	h.SetSeed(seed)
	add := func(part any) {
		text := fmt.Sprint(part)
		fmt.Fprintf(&h, "%d %s", len(text), text)
	}
	add(waiting.Key(pod, claims))
	add(pod.Namespace)
	add(pod.Spec.NodeName)
	add(form(waiting.SaidOf(pod).Message))
	add(waiting.Unclaimed(pod))
	if owner := metav1.GetControllerOf(pod); owner != nil { // The answer can name it.
		add(owner.UID)
	}
	for _, ref := range refs {
		add(ref.Claim == nil)
		add(ref.PodResourceClaim.Name)
		add(ref.Template())
		if ref.ResourceClaimTemplateName == nil {
			add(ref.Name)
		}
		if ref.Claim != nil {
			status, _ := ref.Claim.Status.Marshal() // A decoded object always encodes.
			add(string(status))
			add(ref.Claim.DeletionTimestamp != nil)
		}
	}
	for _, e := range refusals {
		add(form(strings.ReplaceAll(e.Message, quoted(pod.Name), "")))
	}
	return cachedKey{versions, h.Sum64()}
}

// quoted is the beginning of a pod's generated claims in an error.
func quoted(pod string) string { return `"` + pod + "-" }

// refusals returns the Events about refused claims of a pod, by name.
func (k *Keeper) refusals(pod *corev1.Pod) (out []*corev1.Event) {
	found, _ := k.refused.GetIndexer().ByIndex(byUID, string(pod.UID)) // The index exists.
	for _, o := range found {
		if e, ok := o.(*corev1.Event); ok && e.Reason == claimRefused {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Event) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// next returns the kind whose answer is due: of the namespace that waits the longest for its turn, the one with the
// oldest answer.
func (k *Keeper) next(now time.Time) (out *kind) {
	for _, one := range k.kinds {
		if !one.answered.IsZero() && now.Sub(one.answered) < maxAnswerAge {
			continue
		}
		if out == nil || cmp.Or(k.asked.Compare(one.namespace(), out.namespace()), one.answered.Compare(out.answered),
			cmp.Compare(one.namespace(), out.namespace())) < 0 {
			out = one
		}
	}
	return out
}

func (k *kind) namespace() string { return k.pods[0].Namespace }

// template is a claim template that was read for a pod whose claim is missing. It is nil if there is none.
type template struct {
	*resourceapi.ResourceClaimTemplate
	at time.Time
}

// ask asks for the answer of a kind.
func (k *Keeper) ask(ctx context.Context, objects controller.Objects, one *kind, now time.Time) (due []act.Write) {
	slices.SortFunc(one.pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	pod := one.pods[0]
	one.answered, one.about = now, pod.Name
	k.asked.Take(one.namespace())
	answer, aside, err := k.explain(ctx, objects, pod, now)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot explain why a pod waits; trying again", "pod", klog.KObj(pod))
		}
		return nil // The Event keeps the last answer.
	}
	one.text = Text(answer, aside)
	if answer.Result == why.Fits && len(answer.Reasons) == 0 {
		if now.Sub(waiting.SaidOf(pod).At) < schedulerTimeout {
			one.text = "" // The scheduler takes the devices in a moment.
		}
		due = k.wake(one, now)
	}
	for _, ref := range waiting.References(pod, k.cluster) {
		if ref.Claim != nil && ref.ResourceClaimTemplateName != nil {
			// The generated name is of one pod.
			one.text = strings.ReplaceAll(one.text, ref.Claim.Name, ref.PodResourceClaim.Name)
		}
	}
	// Selectors in it can be long. The Event has its first part only.
	one.text = strings.Clone(one.text[:min(len(one.text), 4*maxMessageBytes)])
	return due
}

// schedulerTimeout is the time that the scheduler has for devices that are free.
const schedulerTimeout = 2 * time.Minute

const (
	// maxWakes is the number of Wakes for pods of one kind. If they still wait, they have other reasons.
	maxWakes = 2
	// minWakePause and maxWakePause limit the time between two Wakes, which doubles. Each Wake costs the scheduler an
	// attempt for each waiting pod.
	minWakePause, maxWakePause = 30 * time.Second, 10 * time.Minute
)

// wake has the scheduler try a pod whose devices are free. Its own count of devices can be wrong for a moment when it
// tries the pod, and without an event it tries it again after five minutes.
func (k *Keeper) wake(one *kind, now time.Time) []act.Write {
	if one.woken >= maxWakes || now.Sub(k.woken) < k.wakePause {
		return nil
	}
	if now.Sub(k.woken) >= 2*maxWakePause {
		k.wakePause = 0
	}
	one.woken++
	k.woken, k.wakePause = now, min(max(2*k.wakePause, minWakePause), maxWakePause)
	return act.Wake(k.cluster, one.pods[0])
}

// explain returns why a pod waits, and what was not considered. The answer is Settled if it waits for no device of the
// driver.
func (k *Keeper) explain(
	ctx context.Context, objects controller.Objects, pod *corev1.Pod, now time.Time,
) (why.Answer, []string, error) {
	none := why.Answer{Result: why.Settled}
	about := subject{Classes: waiting.NewClasses(k.o.Driver, objects.Classes)}
	if pod.Spec.NodeName != "" {
		answer := (&why.Cluster{Classes: objects.Classes, Nodes: objects.Nodes, Claims: objects.Claims}).Bound(pod,
			k.o.Driver)
		if answer.Result != why.Lacks {
			return none, nil, nil
		}
		names := waiting.Unallocated(pod, k.cluster)
		for _, name := range names { // The cache of claims can be late.
			claim, err := k.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || claim.Status.Allocation != nil {
				return none, nil, err
			}
			about.found(claim.Spec.Devices)
		}
		if len(names) > 0 && !about.ours {
			return none, nil, nil
		}
		return answer, nil, nil
	}
	c := &why.Cluster{Slices: objects.Slices, Classes: objects.Classes, Events: k.refusals(pod)}
	if objects.Server.Minor != 0 {
		c.ServerVersion = objects.Server.String()
	}
	replaced := map[types.NamespacedName]*resourceapi.ResourceClaim{}
	for _, ref := range waiting.References(pod, k.cluster) {
		claim := ref.Claim
		switch {
		case claim != nil && claim.Status.Allocation != nil:
			whole, err := k.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name,
				metav1.GetOptions{})
			if err != nil {
				return none, nil, fmt.Errorf("read ResourceClaim %s: %w", claim.Name, err)
			}
			about.found(whole.Spec.Devices)
			claim = whole
		case claim != nil:
			claim = about.reduce(claim)
		case ref.ResourceClaimTemplateName != nil:
			t, err := k.template(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: ref.Template()}, now)
			if err != nil {
				return none, nil, err
			}
			if t != nil {
				t = t.DeepCopy()
				t.Spec.Spec = about.reduceSpec(t.Spec.Spec)
				c.Templates = append(c.Templates, t)
			}
			continue
		default:
			continue
		}
		replaced[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}
	if made := waiting.ExtendedClaim(pod, k.cluster); made != nil {
		about.found(made.Spec.Devices)
	}
	about.ours = about.ours || slices.ContainsFunc(waiting.Resources(pod), about.OursByResource)
	if !about.ours && !unknown(pod, replaced) {
		return none, nil, nil
	}
	c.Claims = make([]*resourceapi.ResourceClaim, 0, len(objects.Claims))
	for _, claim := range objects.Claims {
		if other := replaced[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]; other != nil {
			claim = other
		}
		c.Claims = append(c.Claims, claim)
	}
	c.Nodes = objects.Nodes
	rules, err := k.rules.All(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read DeviceTaintRules; Events about pods do not consider them", "err",
			err)
	}
	c.Rules, c.States = rules, read.States{read.DeviceTaintRules: err}
	o := why.Options{Driver: k.o.Driver, Brief: true, Now: now, Reader: pod.Namespace}
	if k.o.NameOthers {
		o.Reader = ""
	}
	answer := why.Ask(ctx, c, why.Subject{Pod: pod}, o)
	names := slices.DeleteFunc(c.Holders(answer), func(n types.NamespacedName) bool {
		return o.Reader != "" && n.Namespace != o.Reader
	})
	if len(names) > 0 {
		answer.Consider(c, o, pod, read.Owner(ctx, k.client, pod), read.Holders(ctx, k.client, names))
	}
	return answer, about.aside, nil
}

// unknown reports whether a pod or a claim of it lost all of its requests, because it is too large for the cache.
func unknown(pod *corev1.Pod, claims map[types.NamespacedName]*resourceapi.ResourceClaim) bool {
	for _, claim := range claims {
		if bounded.TooLarge(claim) && len(claim.Spec.Devices.Requests) == 0 {
			return true
		}
	}
	return bounded.TooLarge(pod) && len(pod.Spec.ResourceClaims)+len(waiting.Resources(pod)) == 0
}

// template reads a template, or returns nil if there is none.
func (k *Keeper) template(
	ctx context.Context, name types.NamespacedName, now time.Time,
) (*resourceapi.ResourceClaimTemplate, error) {
	if known, ok := k.templates[name]; ok {
		return known.ResourceClaimTemplate, nil
	}
	t, err := k.client.ResourceV1().ResourceClaimTemplates(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		t = nil
	case err != nil:
		return nil, fmt.Errorf("read ResourceClaimTemplate %s: %w", name, err)
	}
	if bounded.Fits(t) {
		k.templates[name] = template{t, now}
	}
	return t, nil
}

// subject knows which parts of a pod ask for devices of the driver. The leader knows the slices of this driver only, so
// the requests for other drivers are left out, and named in aside.
type subject struct {
	waiting.Classes
	ours  bool
	aside []string
}

// found notes whether requests are for this driver.
func (s *subject) found(devices resourceapi.DeviceClaim) {
	for q := range selector.Requests(devices.Requests) {
		s.ours = s.ours || s.Ours(q.DeviceClassName)
	}
}

// reduce returns a claim without the requests for other drivers.
func (s *subject) reduce(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	claim.Spec = s.reduceSpec(claim.Spec)
	return claim
}

func (s *subject) reduceSpec(spec resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	s.found(spec.Devices)
	var others []string
	spec.Devices.Requests = slices.DeleteFunc(slices.Clone(spec.Devices.Requests),
		func(r resourceapi.DeviceRequest) bool {
			other := false
			for q := range selector.Requests([]resourceapi.DeviceRequest{r}) {
				other = other || !s.Ours(q.DeviceClassName)
			}
			if other {
				others = append(others, r.Name)
			}
			return other
		})
	if len(others) == 0 {
		return spec
	}
	s.aside = append(s.aside, fmt.Sprintf("its requests for other drivers (%s) are not considered here",
		strings.Join(others, ", ")))
	names := func(requests []string) bool {
		return slices.ContainsFunc(requests, func(r string) bool {
			parent, _, _ := strings.Cut(r, "/")
			return slices.Contains(others, parent)
		})
	}
	spec.Devices.Constraints = slices.DeleteFunc(slices.Clone(spec.Devices.Constraints),
		func(c resourceapi.DeviceConstraint) bool {
			return len(c.Requests) == 0 || names(c.Requests)
		})
	spec.Devices.Config = slices.DeleteFunc(slices.Clone(spec.Devices.Config),
		func(c resourceapi.DeviceClaimConfiguration) bool { return names(c.Requests) })
	return spec
}
