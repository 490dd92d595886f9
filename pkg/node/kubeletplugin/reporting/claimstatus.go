// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/metrics"
)

// fieldManager owns this driver's entries of status.devices, so that server-side apply keeps those of other drivers.
const fieldManager = "gpu-dra-driver"

// xidReported is the type of the condition with a device's last XID.
const xidReported = "XIDReported"

// statusTries limits the attempts to write a claim's status, to about a quarter of an hour.
const statusTries = 12

// statusDelay is the time after a Prepare at which its status is written, so that Prepares of pods that start together
// do not wait for the API server's writes.
const statusDelay = time.Second

// The type of the condition of each device, and its reason for one that is gone.
const ready, partitionLost = "Ready", "PartitionLost"

// flushLimit limits the writes at the plugin's end. It is below the plugin's limit for its background work.
const flushLimit = time.Second

// ClaimStatus writes status.devices of prepared claims in the background: the status is for people, and no pod waits
// for it. It is safe for concurrent use.
type ClaimStatus struct {
	driver  string
	client  kubernetes.Interface
	metrics *metrics.Metrics
	queue   workqueue.TypedRateLimitingInterface[types.UID]

	mu     sync.Mutex
	wanted map[types.UID]*claimStatus
	faults []Faulty
	// Conditions with the last XID of a device, by claim UID and device name.
	xids map[types.UID]map[string]metav1.Condition
}

type claimStatus struct {
	namespace, name string
	devices         []resourceapi.AllocatedDeviceStatus
}

// NewClaimStatus returns a ClaimStatus, which makes no request yet.
func NewClaimStatus(client kubernetes.Interface, driver string, m *metrics.Metrics) *ClaimStatus {
	return &ClaimStatus{
		driver: driver, client: client, metrics: m, wanted: map[types.UID]*claimStatus{},
		xids: map[types.UID]map[string]metav1.Condition{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](200*time.Millisecond, 5*time.Minute)),
	}
}

type deviceData struct {
	memberData
	CDIDevice string `json:"cdiDevice"`
	// Profile and ParentUUID are set for a MIG device; UUID is the partition's then.
	Profile    string `json:"profile,omitempty"`
	ParentUUID string `json:"parentUUID,omitempty"`
	// Strategy is the sharing strategy. MemoryMiB and ComputePercent are the claim's share; 0 means all.
	Strategy       string `json:"sharingStrategy,omitempty"`
	MemoryMiB      uint64 `json:"shareMemoryMiB,omitempty"`
	ComputePercent int    `json:"shareComputePercent,omitempty"`
	// GPUs are the GPUs of a group, in link order; the fields above describe the first one.
	GPUs []memberData `json:"gpus,omitempty"`
}

type memberData struct {
	UUID       string `json:"uuid"`
	PCIAddress string `json:"pciAddress"`
	Minor      int    `json:"minor"`
}

// Prepared queues the status of a claim after a Prepare, which has made lost partitions again.
func (w *ClaimStatus) Prepared(claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice) {
	w.set(claim, devices, nil)
}

// update queues the status of a claim whose faults or XIDs have changed. A lost device stays lost.
func (w *ClaimStatus) update(claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice) {
	w.mu.Lock()
	known := claim.Status.Devices
	if waits := w.wanted[claim.UID]; waits != nil {
		known = waits.devices
	}
	w.mu.Unlock()
	gone := map[string]metav1.Condition{}
	for _, s := range known {
		if c := meta.FindStatusCondition(s.Conditions, ready); c != nil && c.Reason == partitionLost &&
			s.Driver == w.driver {
			gone[s.Device] = *c
		}
	}
	w.set(claim, devices, gone)
}

// lost queues a status that marks some of the claim's devices as gone.
func (w *ClaimStatus) lost(
	claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice, names []string, why error,
) {
	gone := map[string]metav1.Condition{}
	for _, name := range names {
		gone[name] = condition(ready, metav1.ConditionFalse, partitionLost, why.Error())
	}
	w.set(claim, devices, gone)
}

// set queues the claim's status unless it is already written: a restarted kubelet prepares every claim again. gone has
// the conditions of devices that are gone.
func (w *ClaimStatus) set(
	claim *resourceapi.ResourceClaim, devices []devicestate.PreparedDevice, gone map[string]metav1.Condition,
) {
	type key struct{ pool, device, share string }
	keyOf := func(s resourceapi.AllocatedDeviceStatus) key {
		return key{s.Pool, s.Device, ptr.Deref(s.ShareID, "")}
	}
	was := map[key]resourceapi.AllocatedDeviceStatus{}
	for _, s := range claim.Status.Devices {
		if s.Driver == w.driver {
			was[keyOf(s)] = s
		}
	}
	var want []resourceapi.AllocatedDeviceStatus
	seen := map[key]bool{}
	changed := false
	for _, d := range devices {
		s := w.deviceStatus(claim, d)
		if c, ok := gone[d.Name]; ok {
			s.Conditions[0] = c
		}
		if k := keyOf(s); !seen[k] {
			seen[k] = true
			changed = !equal(was[k], s) || changed
			want = append(want, s)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Another status that waits is older.
	if changed || len(seen) != len(was) || w.wanted[claim.UID] != nil {
		w.wanted[claim.UID] = &claimStatus{claim.Namespace, claim.Name, want}
		w.queue.AddAfter(claim.UID, statusDelay)
	}
}

// Unprepared drops the waiting status of a claim; the API server clears the written one.
func (w *ClaimStatus) Unprepared(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wanted, uid)
	delete(w.xids, uid)
}

// keepXIDs forgets the XIDs of claims that are not prepared: one can be reported while its claim ends.
func (w *ClaimStatus) keepXIDs(prepared []plan.Plan) {
	kept := map[types.UID]bool{}
	for _, p := range prepared {
		kept[types.UID(p.Claim.UID)] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.xids, func(uid types.UID, _ map[string]metav1.Condition) bool { return !kept[uid] })
}

// setXID sets the last XID of a device, for its statuses from now on.
func (w *ClaimStatus) setXID(claim types.UID, device string, code uint64, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.xids[claim] == nil {
		w.xids[claim] = map[string]metav1.Condition{}
	}
	w.xids[claim][device] = condition(xidReported, metav1.ConditionTrue, fmt.Sprintf("XID%d", code), text)
}

// lastXID returns the condition with the last XID of a device, or none. A restart of the plugin does not change it.
func (w *ClaimStatus) lastXID(claim *resourceapi.ResourceClaim, d devicestate.PreparedDevice) []metav1.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.xids[claim.UID][d.Name]; ok {
		return []metav1.Condition{c}
	}
	for _, s := range claim.Status.Devices {
		if c := meta.FindStatusCondition(s.Conditions, xidReported); c != nil && s.Driver == w.driver &&
			s.Device == d.Name {
			return []metav1.Condition{*c}
		}
	}
	return nil
}

// setFaults sets the faults that statuses from now on name.
func (w *ClaimStatus) setFaults(faults []Faulty) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = faults
}

// unhealthy returns the condition of a faulty device, or none.
func (w *ClaimStatus) unhealthy(d devicestate.PreparedDevice) []metav1.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		if fault, ok := f.Devices[d.Name]; ok && !d.Admin {
			return []metav1.Condition{
				condition("Healthy", metav1.ConditionFalse, string(claimerror.DeviceUnhealthy), fault.Cause),
			}
		}
	}
	return nil
}

func (w *ClaimStatus) deviceStatus(
	claim *resourceapi.ResourceClaim, d devicestate.PreparedDevice,
) resourceapi.AllocatedDeviceStatus {
	about := deviceData{
		memberData: memberData{UUID: d.UUID, PCIAddress: d.PCIAddress, Minor: d.Minor}, CDIDevice: d.CDIDeviceID,
		Strategy: string(d.Sharing.Strategy), MemoryMiB: d.Share.UsableBytes >> 20, ComputePercent: d.Share.Compute,
	}
	if d.Kind == gpu.KindMIG {
		about.UUID, about.Profile, about.ParentUUID = d.Partition.UUID, d.Partition.Profile, d.UUID
	}
	for _, m := range d.Members {
		about.GPUs = append(about.GPUs, memberData{UUID: m.UUID, PCIAddress: m.PCIAddress, Minor: m.Minor})
	}
	data, _ := json.Marshal(about) // Strings and integers always encode.
	s := resourceapi.AllocatedDeviceStatus{
		Driver: w.driver, Pool: d.Pool, Device: d.Name, Data: &runtime.RawExtension{Raw: data},
		Conditions: []metav1.Condition{
			condition(ready, metav1.ConditionTrue, "Prepared", "the device is prepared on its node"),
		},
	}
	s.Conditions = slices.Concat(s.Conditions, w.unhealthy(d), w.lastXID(claim, d))
	if d.ShareID != "" {
		s.ShareID = &d.ShareID
	}
	return s
}

// condition has the time of now.
func condition(of string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type:               of,
		Status:             status,
		Reason:             reason,
		Message:            message,
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
}

// equal compares two statuses, except for the times of equal conditions.
func equal(was, is resourceapi.AllocatedDeviceStatus) bool {
	sameCondition := func(a, b metav1.Condition) bool {
		a.LastTransitionTime, a.ObservedGeneration = b.LastTransitionTime, b.ObservedGeneration
		return a == b
	}
	if was.Data == nil || !slices.EqualFunc(was.Conditions, is.Conditions, sameCondition) {
		return false
	}
	var a, b deviceData
	return json.Unmarshal(was.Data.Raw, &a) == nil && json.Unmarshal(is.Data.Raw, &b) == nil && reflect.DeepEqual(a, b)
}

// Run writes until the context ends, and then at once what waits: a successor writes no status of claims whose Prepare
// it does not see.
func (w *ClaimStatus) Run(ctx context.Context) {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(flushLimit, cancel)
		w.queue.ShutDown()
	})
	defer stop()
	for {
		uid, shutdown := w.queue.Get()
		if shutdown {
			break
		}
		Protect(w.metrics, func() { w.sync(writing, uid) })
		w.queue.Done(uid)
	}
	w.mu.Lock()
	waiting := slices.Collect(maps.Keys(w.wanted))
	w.mu.Unlock()
	for _, uid := range waiting {
		Protect(w.metrics, func() { w.sync(writing, uid) })
	}
}

func (w *ClaimStatus) sync(ctx context.Context, uid types.UID) {
	w.mu.Lock()
	want, ok := w.wanted[uid]
	w.mu.Unlock()
	if !ok {
		w.queue.Forget(uid)
		return
	}
	err := w.apply(ctx, uid, want)
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(want.namespace, want.name))
	switch {
	case err == nil:
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // Conflict: another claim has the name now.
		logger.V(4).Info("The claim was deleted or changed; its device status is not written", "err", err)
	// Invalid needs an administrator: the server also returns it if the role lacks the verbs on resourceclaims/driver.
	case !apierrors.IsInvalid(err) && w.queue.NumRequeues(uid) < statusTries && ctx.Err() == nil:
		logger.V(4).Info("Device status not written; trying again", "err", err)
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

func (w *ClaimStatus) apply(ctx context.Context, uid types.UID, want *claimStatus) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	patch, _ := json.Marshal(map[string]any{ // API types always encode.
		"apiVersion": resourceapi.SchemeGroupVersion.String(), "kind": "ResourceClaim",
		"metadata": map[string]any{"namespace": want.namespace, "name": want.name, "uid": uid},
		"status":   map[string]any{"devices": want.devices},
	})
	options := metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)}
	_, err := w.client.ResourceV1().ResourceClaims(want.namespace).Patch(ctx, want.name, types.ApplyPatchType, patch,
		options, "status")
	return err
}
