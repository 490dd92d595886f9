// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/wire"
)

const (
	// retryInterval is the interval of questions about a refused slice. The refusals of its parts count for
	// partsMaxAge, so that a policy that stays costs the API server one question.
	retryInterval = time.Minute
	partsMaxAge   = 5 * time.Minute
	// reportEvery is the interval of Events about the same refusals. The API server keeps an Event for an hour.
	reportEvery = 50 * time.Minute
	// askTimeout limits all questions about one update.
	askTimeout = 20 * time.Second
	// maxCause limits the text of a refusal in an Event, which names the remedy too.
	maxCause = 500
)

// acceptance replaces the devices that the API server refuses, before the controller writes. The controller would stop
// at the first refused slice. If several slices change, it has deleted or replaced others by then, so the scheduler
// would find an incomplete pool. Only the goroutine of a session uses it.
type acceptance struct {
	p      *Publisher
	seeded bool
	// answers has the answers of this update by the content of a slice, before has those of the last one.
	answers, before map[[sha256.Size]byte]answer
	cleared         time.Time
	// refusing means that the last answers had a refusal.
	refusing bool
	// reported are the refusals of the last Event, at its time.
	reported string
	at       time.Time
}

// answer is the API server's answer about a slice.
type answer struct {
	refusal error
	at      time.Time
}

// refusal is a device of a pool that the API server refuses. Without a name, it is a slice whose devices alone are
// accepted.
type refusal struct {
	pool, device string
	err          error
}

// refuses reports whether an answer is about the content of a slice. Webhooks that do not support dry runs cause a
// BadRequest.
func refuses(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && slices.Contains(
		[]int32{http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity},
		status.Status().Code)
}

// settle returns the pools that the API server accepts. A refused device has its last accepted form with the present
// taints, or without them. If neither is possible beside the others, the whole pool stays. kept has the names of such
// pools. Unless all questions have an answer, settle returns the wanted pools.
func (a *acceptance) settle(
	ctx context.Context, wanted map[string]resourceslice.Pool,
) (out map[string]resourceslice.Pool, kept map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, kept, refused, err := a.accepted(ctx, wanted)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask the API server whether it accepts the slices; publishing them "+
			"unasked", "err", err)
		return wanted, nil
	}
	a.refusing = len(refused) > 0
	a.report(refused)
	return out, kept
}

func (a *acceptance) accepted(ctx context.Context, wanted map[string]resourceslice.Pool) (
	out map[string]resourceslice.Pool, kept map[string]bool, refused []refusal, err error,
) {
	if a.p.doubted.Swap(false) && time.Since(a.cleared) > time.Minute {
		a.answers, a.cleared = nil, time.Now()
	}
	a.answers, a.before = map[[sha256.Size]byte]answer{}, a.answers
	if !a.seeded {
		published, err := a.published(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		for name, pool := range published {
			for _, s := range pool.Slices {
				a.answers[key(name, s)] = answer{}
			}
		}
		a.seeded = true
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		for _, s := range wanted[name].Slices {
			found, err := a.find(ctx, name, s, retryInterval)
			if err != nil {
				return nil, nil, nil, err
			}
			refused = append(refused, found...)
		}
	}
	if len(refused) == 0 {
		return wanted, nil, nil, nil
	}
	published, err := a.published(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	out, kept = map[string]resourceslice.Pool{}, map[string]bool{}
	for name, pool := range wanted {
		of := slices.DeleteFunc(slices.Clone(refused), func(r refusal) bool { return r.pool != name })
		replaced, ok, err := a.replace(ctx, name, pool, published[name], of)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case ok:
			out[name] = replaced
		default:
			out[name], kept[name] = published[name], true
		}
	}
	return out, kept, refused, nil
}

// find returns the refused devices of a slice.
func (a *acceptance) find(
	ctx context.Context, pool string, s resourceslice.Slice, age time.Duration,
) ([]refusal, error) {
	refused, err := a.ask(ctx, pool, s, age)
	switch {
	case err != nil || refused == nil:
		return nil, err
	case len(s.Devices) == 1:
		return []refusal{{pool, s.Devices[0].Name, refused}}, nil
	}
	var out []refusal
	for half := range slices.Chunk(s.Devices, max(1, (len(s.Devices)+1)/2)) {
		found, err := a.find(ctx, pool, resourceslice.Slice{Devices: half}, partsMaxAge)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		out = []refusal{{pool: pool, err: refused}}
	}
	return out, nil
}

// replace returns a pool without the refused forms of devices. ok is false if the published pool must stay: a device
// was published that claims can have, and has no accepted form with the counters of the others.
func (a *acceptance) replace(
	ctx context.Context, name string, wanted, published resourceslice.Pool, refused []refusal,
) (
	out resourceslice.Pool, ok bool, err error,
) {
	last, instead := map[string]resourceapi.Device{}, map[string]*resourceapi.Device{}
	for _, s := range published.Slices {
		for _, d := range s.Devices {
			last[d.Name] = d
		}
	}
	whole := slices.ContainsFunc(refused, func(r refusal) bool { return r.device == "" })
	if whole && len(published.Slices) > 0 {
		return out, false, nil
	}
	for _, r := range refused {
		instead[r.device] = nil
	}
	for _, s := range wanted.Slices {
		var devices []resourceapi.Device
		for _, d := range s.Devices {
			was, known := last[d.Name]
			_, isRefused := instead[d.Name]
			switch {
			case !isRefused:
				devices = append(devices, d)
				continue
			case !known:
				continue // No claim can have it.
			case !apiequality.Semantic.DeepEqual(was.ConsumesCounters, d.ConsumesCounters):
				return out, false, nil // It would not exclude the devices that overlap it.
			}
			tainted := was
			tainted.Taints = d.Taints
			found := false
			for _, form := range []resourceapi.Device{tainted, was} {
				refusal, err := a.ask(ctx, name, resourceslice.Slice{Devices: []resourceapi.Device{form}}, partsMaxAge)
				if err != nil {
					return out, false, err
				}
				if found = refusal == nil; found {
					devices = append(devices, form)
					break
				}
			}
			if !found {
				return out, false, nil
			}
		}
		if s.Devices = devices; len(devices)+len(s.SharedCounters) > 0 {
			out.Slices = append(out.Slices, s)
		}
	}
	if whole { // Nothing is published, so any part of the wanted slices can be.
		out.Slices = slices.DeleteFunc(out.Slices, func(s resourceslice.Slice) bool {
			refusal, err := a.ask(ctx, name, s, partsMaxAge)
			return err != nil || refusal != nil
		})
	}
	out.Slices = counted(out.Slices)
	if len(out.Slices) == 0 {
		out.Slices = []resourceslice.Slice{{}}
	}
	return out, true, nil
}

// counted leaves out the devices whose counters are not published: they would not exclude others, and the scheduler
// uses no pool with them.
func counted(all []resourceslice.Slice) (out []resourceslice.Slice) {
	sets := map[string]bool{}
	for _, s := range all {
		for _, set := range s.SharedCounters {
			sets[set.Name] = true
		}
	}
	for _, s := range all {
		s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d resourceapi.Device) bool {
			return slices.ContainsFunc(d.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
				return !sets[c.CounterSet]
			})
		})
		if len(s.Devices)+len(s.SharedCounters) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// ask returns the API server's refusal of a slice, by a dry run. Acceptance counts until the content changes, and a
// refusal for this time. err is about the question.
func (a *acceptance) ask(
	ctx context.Context, pool string, s resourceslice.Slice, age time.Duration,
) (refusal, err error) {
	content := key(pool, s)
	for _, known := range []map[[sha256.Size]byte]answer{a.answers, a.before} {
		if one, ok := known[content]; ok && (one.refusal == nil || time.Since(one.at) < age) {
			a.answers[content] = one
			return one.refusal, nil
		}
	}
	slice := a.p.object(0, pool, 1, s)
	_, err = a.p.o.Client.ResourceV1().ResourceSlices().Create(ctx, slice,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && !refuses(err) {
		return nil, err
	}
	a.answers[content] = answer{err, time.Now()}
	return err, nil
}

// key is a hash of the content of a slice.
func key(pool string, s resourceslice.Slice) [sha256.Size]byte {
	content, _ := json.Marshal([]any{pool, s.Devices, s.SharedCounters}) // API types always encode.
	return sha256.Sum256(content)
}

// published returns the newest generation of the node's pools on the API server, without the times of taints.
func (a *acceptance) published(ctx context.Context) (map[string]resourceslice.Pool, error) {
	found, err := a.p.o.Client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: a.p.ownSlices()})
	if err != nil {
		return nil, err
	}
	newest := map[string]int64{}
	for _, s := range found.Items {
		newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	slices.SortFunc(found.Items, func(x, y resourceapi.ResourceSlice) int { return cmp.Compare(x.Name, y.Name) })
	out := map[string]resourceslice.Pool{}
	for _, s := range found.Items {
		name := s.Spec.Pool.Name
		if s.Spec.Pool.Generation < newest[name] {
			continue
		}
		for i := range s.Spec.Devices {
			for k := range s.Spec.Devices[i].Taints {
				s.Spec.Devices[i].Taints[k].TimeAdded = nil
			}
		}
		out[name] = resourceslice.Pool{Slices: append(out[name].Slices, resourceslice.Slice{
			Devices: s.Spec.Devices, SharedCounters: s.Spec.SharedCounters,
		})}
	}
	return out, nil
}

// report writes an Event on the Node about the refusals, and sets the metric that `kubectl gpu doctor` and the alert
// read.
func (a *acceptance) report(refused []refusal) {
	var devices []string
	for _, r := range refused {
		devices = append(devices, r.device)
	}
	slices.Sort(devices)
	a.p.o.Metrics.SetRefused(devices)
	text := strings.Join(devices, ", ")
	for _, r := range refused {
		text += "\n" + r.err.Error()
	}
	if len(refused) == 0 || text == a.reported && time.Since(a.at) < reportEvery {
		if len(refused) == 0 {
			a.reported = ""
		}
		return
	}
	a.reported, a.at = text, time.Now()
	first := refused[0]
	name, cause := first.device, first.err.Error()
	if len(cause) > maxCause {
		cause = strings.ToValidUTF8(cause[:maxCause], "") + "…"
	}
	if name == "" {
		name = "slices of pool " + first.pool
	}
	if len(refused) > 1 {
		name += fmt.Sprintf(" and %d others", len(refused)-1)
	}
	a.p.o.Reports.Report(&claimerror.Error{
		Reason: claimerror.PublishRefused, Attempt: "publish", Device: name, Cause: errors.New(cause),
		Remedy: "the devices keep the last form that the API server accepted, or are not published; others are not " +
			"affected. Correct the admission policy or quota that the message names; if it names none, report this. " +
			"The plugin asks again every minute",
	})
	for _, r := range refused {
		reason := "Failed"
		if apierrors.IsInvalid(r.err) {
			reason = "Invalid"
		}
		a.p.o.Metrics.PublishFailed(reason)
	}
}

// ownSlices selects the node's slices.
func (p *Publisher) ownSlices() string {
	return fields.Set{
		resourceapi.ResourceSliceSelectorDriver: p.o.Driver, resourceapi.ResourceSliceSelectorNodeName: p.o.Node,
	}.String()
}

// object returns a slice as the controller creates it.
func (p *Publisher) object(index int, pool string, count int, s resourceslice.Slice) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("%05x-%s-%s-", index, p.o.Driver, p.o.Node)},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: p.o.Driver, NodeName: &p.o.Node, Devices: s.Devices, SharedCounters: s.SharedCounters,
			Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(count)},
		},
	}
}

// settled passes pools to the controller, and remembers them for the metrics.
func (p *Publisher) settled(pools map[string]resourceslice.Pool, kept map[string]bool) *resourceslice.DriverResources {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published, p.kept = nil, kept[wire.PoolName(p.o.Node)]
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		p.published = append(p.published, pools[name].Slices...)
	}
	return &resourceslice.DriverResources{Pools: pools}
}
