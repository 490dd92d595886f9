// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/metrics"
)

// fieldManager owns our entries of status.devices; others' are not touched by server-side apply.
const fieldManager = "gpu-dra-driver"

// statusTries bounds the writing of one claim's status, about a quarter of an hour.
const statusTries = 12

// statusWriter fills status.devices of prepared claims, off the path of Prepare: the status is for people, and no pod
// waits for it.
type statusWriter struct {
	driver  string
	client  claimStatuses
	metrics *metrics.Metrics
	queue   workqueue.TypedRateLimitingInterface[types.UID]

	mu     sync.Mutex
	wanted map[types.UID]*claimStatus
}

type claimStatus struct {
	namespace, name string
	devices         []resourceapi.AllocatedDeviceStatus
}

func newStatusWriter(client claimStatuses, driver string, m *metrics.Metrics) *statusWriter {
	return &statusWriter{
		driver: driver, client: client, metrics: m, wanted: map[types.UID]*claimStatus{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](200*time.Millisecond, 5*time.Minute)),
	}
}

// deviceData is what status.devices[].data holds.
type deviceData struct {
	UUID       string `json:"uuid"`
	PCIAddress string `json:"pciAddress"`
	Minor      int    `json:"minor"`
	CDIDevice  string `json:"cdiDevice"`
	// Profile and ParentUUID are a MIG device's, whose own UUID is the partition's.
	Profile    string `json:"profile,omitempty"`
	ParentUUID string `json:"parentUUID,omitempty"`
	// Strategy is how the device is shared; MemoryMiB and ComputePercent are the claim's share of it, none where it has all.
	Strategy       string `json:"sharingStrategy,omitempty"`
	MemoryMiB      uint64 `json:"shareMemoryMiB,omitempty"`
	ComputePercent int    `json:"shareComputePercent,omitempty"`
	// GPUs are a group's, in link order; the fields above are the first one's.
	GPUs []memberData `json:"gpus,omitempty"`
}

type memberData struct {
	UUID       string `json:"uuid"`
	PCIAddress string `json:"pciAddress"`
	Minor      int    `json:"minor"`
}

// prepared wants the claim's status written, unless it says so already: a restarted kubelet prepares every claim again.
func (w *statusWriter) prepared(claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice) {
	type key struct{ pool, device, share string }
	keyOf := func(s resourceapi.AllocatedDeviceStatus) key {
		k := key{pool: s.Pool, device: s.Device}
		if s.ShareID != nil {
			k.share = *s.ShareID
		}
		return k
	}
	was := map[key]resourceapi.AllocatedDeviceStatus{}
	for _, s := range claim.Status.Devices {
		if s.Driver == w.driver {
			was[keyOf(s)] = s
		}
	}
	want := &claimStatus{namespace: claim.Namespace, name: claim.Name}
	seen := map[key]bool{}
	changed := false
	for _, d := range devices {
		s := w.deviceStatus(d)
		if k := keyOf(s); !seen[k] {
			seen[k] = true
			changed = !says(was[k], s) || changed
			want.devices = append(want.devices, s)
		}
	}
	if !changed && len(seen) == len(was) {
		return
	}
	w.mu.Lock()
	w.wanted[claim.UID] = want
	w.mu.Unlock()
	w.queue.Add(claim.UID)
}

func (w *statusWriter) deviceStatus(d devicestate.PreparedDevice) resourceapi.AllocatedDeviceStatus {
	about := deviceData{UUID: d.UUID, PCIAddress: d.PCIAddress, Minor: d.Minor, CDIDevice: d.CDIDeviceID}
	if d.Kind == gpu.KindMIG {
		about.UUID, about.Profile, about.ParentUUID = d.Partition.UUID, d.Partition.Profile, d.UUID
	}
	about.Strategy, about.MemoryMiB, about.ComputePercent = string(d.Sharing.Strategy), d.Share.UsableBytes>>20, d.Share.Compute
	for _, m := range d.Members {
		about.GPUs = append(about.GPUs, memberData{UUID: m.UUID, PCIAddress: m.PCIAddress, Minor: m.Minor})
	}
	data, _ := json.Marshal(about) // Strings and integers always encode.
	s := resourceapi.AllocatedDeviceStatus{
		Driver: w.driver, Pool: d.Pool, Device: d.Name, Data: &runtime.RawExtension{Raw: data},
		Conditions: []metav1.Condition{{
			Type: "Ready", Status: metav1.ConditionTrue, Reason: "Prepared", Message: "the device is prepared on its node",
			LastTransitionTime: metav1.Now().Rfc3339Copy(),
		}},
	}
	if d.ShareID != "" {
		s.ShareID = &d.ShareID
	}
	return s
}

// lost wants the claim's status to say that some of its devices are gone.
func (w *statusWriter) lost(claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice, gone []string, why error) {
	want := &claimStatus{namespace: claim.Namespace, name: claim.Name}
	for _, d := range devices {
		s := w.deviceStatus(d)
		if slices.Contains(gone, d.Name) {
			c := &s.Conditions[0]
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, "PartitionLost", why.Error()
		}
		want.devices = append(want.devices, s)
	}
	w.mu.Lock()
	w.wanted[claim.UID] = want
	w.mu.Unlock()
	w.queue.Add(claim.UID)
}

// says compares two statuses; the time of a condition that is the same does not count.
func says(was, is resourceapi.AllocatedDeviceStatus) bool {
	if len(was.Conditions) != len(is.Conditions) || was.Data == nil {
		return false
	}
	for i, c := range was.Conditions {
		c.LastTransitionTime, c.ObservedGeneration = is.Conditions[i].LastTransitionTime, is.Conditions[i].ObservedGeneration
		if c != is.Conditions[i] {
			return false
		}
	}
	var a, b deviceData
	if json.Unmarshal(was.Data.Raw, &a) != nil || json.Unmarshal(is.Data.Raw, &b) != nil {
		return false
	}
	return reflect.DeepEqual(a, b)
}

// unprepared forgets the claim: its status is the API server's to clear.
func (w *statusWriter) unprepared(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wanted, uid)
}

// run writes until the context ends.
func (w *statusWriter) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	for {
		uid, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		protect(w.metrics, func() { w.work(ctx, uid) })
		w.queue.Done(uid)
	}
}

func (w *statusWriter) work(ctx context.Context, uid types.UID) {
	w.mu.Lock()
	want, ok := w.wanted[uid]
	w.mu.Unlock()
	if !ok {
		w.queue.Forget(uid)
		return
	}
	err := w.write(ctx, uid, want)
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(want.namespace, want.name))
	switch {
	case err == nil:
	case gone(err):
		logger.V(4).Info("Claim is gone or has changed; its device status is not written", "err", err)
	case !apierrors.IsInvalid(err) && w.queue.NumRequeues(uid) < statusTries && ctx.Err() == nil:
		logger.V(4).Info("Device status not written, trying again", "err", err)
		w.queue.AddRateLimited(uid)
		return
	default:
		logger.Error(err, "Device status not written; the claim works without it")
	}
	w.queue.Forget(uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted[uid] == want {
		delete(w.wanted, uid)
	}
}

// gone says that the claim of that UID is not there: Conflict where its name is another claim's now. Invalid, which a
// server also answers where the role lacks the verbs on resourceclaims/driver, is for a person to see.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

func (w *statusWriter) write(ctx context.Context, uid types.UID, want *claimStatus) error {
	status := resourceac.ResourceClaimStatus()
	for _, d := range want.devices {
		device := resourceac.AllocatedDeviceStatus().WithDriver(d.Driver).WithPool(d.Pool).WithDevice(d.Device).WithData(*d.Data)
		if d.ShareID != nil {
			device.WithShareID(*d.ShareID)
		}
		for _, c := range d.Conditions {
			device.WithConditions(metaac.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).
				WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
		}
		status.WithDevices(device)
	}
	claim := resourceac.ResourceClaim(want.name, want.namespace).WithUID(uid).WithStatus(status)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return w.client.apply(ctx, claim)
}
