// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
)

// DevicePluginSetting is the name of the records of GPUs that device plugins serve.
const DevicePluginSetting = "device-plugin"

const (
	// pollInterval is the interval of the questions about device plugins. GPUs that a device plugin newly offers are
	// withdrawn after the next poll. Until then a claim can get one, and Prepare refuses it.
	pollInterval = 20 * time.Second
	// firstInterval is the interval until the first answer, without which nothing is published.
	firstInterval = time.Second
	// podsEvery is the number of polls after which the pods are listed, which costs more than all else in a poll. While
	// a device plugin serves GPUs, each poll lists them.
	podsEvery = 3
	// servedGrace is the time for which a GPU stays served after the last answer with it. After its own restart, and
	// after a device plugin's, the kubelet lists no devices until the device plugin has registered again. It waits as
	// long itself (endpointStopGracePeriod). For a GPU that an earlier process knew as served, the time begins once the
	// kubelet answers and a scan has the GPU. Before NVIDIA's driver is loaded, no device plugin can register it.
	servedGrace = 5 * time.Minute
	// silentLimit is the time without an answer before an Event, since a starting kubelet is silent for a moment.
	// silentRepeat is the pause between such Events, which the API server keeps for an hour.
	silentLimit, silentRepeat = 15 * time.Second, 30 * time.Minute
	// lockLimit limits the wait for another plugin's write of a record. The next poll tries again.
	lockLimit = 5 * time.Second
	// unknownResource stands for the resource in an unreadable record.
	unknownResource = "an unknown resource"
)

// Lister lists the allocations of device plugins. *Kubelet implements it.
type Lister interface {
	DevicePlugins(ctx context.Context, pods bool) (Allocations, error)
}

// DevicePluginsOptions configures a DevicePlugins; all fields are required.
type DevicePluginsOptions struct {
	Kubelet Lister
	Scans   *inventory.Latest
	// Records remember the served GPUs for later processes. Writers hold the lock with the path Lock.
	Records *record.GPUs
	Host    *host.Host
	Lock    string
	// Changed is fired after the first answer, and after polls that change the served GPUs.
	Changed notify.Trigger
	Metrics *metrics.Metrics
	Reports notify.Reporter
}

// DevicePlugins knows the GPUs that the node's device plugins serve. It is safe for concurrent use.
type DevicePlugins struct {
	o        DevicePluginsOptions
	answered chan struct{}

	// Only poll uses these. stored are the resources in the records, nil until they were read. silent is the time of
	// the first poll without an answer since the last answer, and reported that of the last report.
	stored           map[string]string
	answers          int
	silent, reported time.Time

	mu     sync.Mutex
	known  bool
	served Allocations
	// seen are the GPUs of the answers within servedGrace and those of the records, by PCI address.
	seen map[string]sighting
}

// sighting is the last answer with a GPU. at is zero for a GPU of a record whose grace has not begun.
type sighting struct {
	resource string
	at       time.Time
}

// NewDevicePlugins returns a DevicePlugins before its first poll.
func NewDevicePlugins(o DevicePluginsOptions) *DevicePlugins {
	return &DevicePlugins{o: o, answered: make(chan struct{}), seen: map[string]sighting{}}
}

// Run polls the kubelet until the context ends.
func (d *DevicePlugins) Run(ctx context.Context) {
	for ctx.Err() == nil {
		reporting.Protect(d.o.Metrics, func() { d.poll(ctx) })
		pause := pollInterval
		if d.answers == 0 {
			pause = firstInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Answered returns a channel that the kubelet's first answer closes.
func (d *DevicePlugins) Answered() <-chan struct{} { return d.answered }

// GPUs implements plan.DevicePlugins. Before the kubelet's first answer it returns the GPUs that an earlier process
// knew.
func (d *DevicePlugins) GPUs() (map[string]string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gpus(), d.known
}

// gpus returns the served GPUs. The caller holds d.mu.
func (d *DevicePlugins) gpus() map[string]string {
	out := d.served.gpus(d.o.Scans.Snapshot())
	for address, s := range d.seen {
		if out[address] == "" {
			out[address] = s.resource
		}
	}
	return out
}

func (d *DevicePlugins) poll(ctx context.Context) {
	if d.stored == nil && !d.load() {
		return
	}
	before, known := d.GPUs()
	served, err := d.o.Kubelet.DevicePlugins(ctx, len(before) > 0 || d.answers%podsEvery == 0)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.reportSilence(err)
		return
	}
	d.answers++
	d.silent, d.reported = time.Time{}, time.Time{}
	now := d.take(served)
	d.o.Metrics.SetDevicePluginGPUs(len(now))
	d.save(ctx, now)
	if !known {
		close(d.answered)
	}
	if !known || !maps.Equal(now, before) {
		d.o.Changed.Fire()
	}
}

// take stores an answer and returns the served GPUs.
func (d *DevicePlugins) take(served Allocations) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known, d.served = true, served
	snapshot, now := d.o.Scans.Snapshot(), time.Now()
	for address, s := range d.seen {
		if _, scanned := snapshot.ByAddress(address); scanned && s.at.IsZero() {
			d.seen[address] = sighting{s.resource, now}
		}
	}
	for address, resource := range served.gpus(snapshot) {
		d.seen[address] = sighting{resource, now}
	}
	maps.DeleteFunc(d.seen, func(_ string, s sighting) bool { return !s.at.IsZero() && now.Sub(s.at) >= servedGrace })
	return d.gpus()
}

// load reads the records of an earlier process. A GPU with an unreadable one counts as served.
func (d *DevicePlugins) load() bool {
	addresses, err := d.o.Records.Addresses()
	if err != nil {
		d.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: "read which GPUs device plugins served", Cause: err,
			Remedy: "no GPU is published until it succeeds; check the node's disk",
		})
		return false
	}
	stored := map[string]string{}
	for _, address := range addresses {
		switch r, err := d.o.Records.Get(address); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			stored[address] = unknownResource
		default:
			stored[address] = cmp.Or(r.Served, unknownResource)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stored = stored
	for address, resource := range stored {
		d.seen[address] = sighting{resource: resource}
	}
	return true
}

// save makes the records equal to the served GPUs.
func (d *DevicePlugins) save(ctx context.Context, now map[string]string) {
	if maps.Equal(d.stored, now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lockLimit)
	defer cancel()
	lock, err := d.o.Host.Lock(ctx, d.o.Lock, 0)
	if err == nil {
		err = d.write(now)
		lock.Release()
	}
	if err != nil {
		d.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.HostFailure, Attempt: "remember the GPUs that device plugins serve", Cause: err,
			Remedy: "the plugin retries, and knows them until it restarts; check the node's disk",
		})
	}
}

func (d *DevicePlugins) write(now map[string]string) error {
	boot, err := d.o.Host.BootID()
	if err != nil {
		return err
	}
	snapshot := d.o.Scans.Snapshot()
	for address, resource := range now {
		if d.stored[address] == resource {
			continue
		}
		g, _ := snapshot.ByAddress(address)
		if err := d.o.Records.Put(record.GPU{BootID: boot, PCIAddress: address, UUID: g.UUID,
			Served: resource}); err != nil {
			return err
		}
		d.stored[address] = resource
	}
	for address := range maps.Clone(d.stored) {
		if now[address] != "" {
			continue
		}
		if err := d.o.Records.Remove(address); err != nil {
			return err
		}
		delete(d.stored, address)
	}
	return nil
}

// reportSilence reports that the kubelet does not answer. Silence is not the answer that there are no device plugins.
func (d *DevicePlugins) reportSilence(err error) {
	now := time.Now()
	if d.silent.IsZero() {
		d.silent = now
	}
	if now.Sub(d.silent) < silentLimit || !d.reported.IsZero() && now.Sub(d.reported) < silentRepeat {
		return
	}
	d.reported = now
	effect := "no GPU is published, and no new claim is prepared, until it answers"
	if d.answers > 0 {
		effect = "its last answer stays valid"
	}
	d.o.Reports.Report(&claimerror.Error{
		Reason: claimerror.KubeletUnreachable, Attempt: "find the GPUs that device plugins serve", Cause: err,
		Remedy: effect +
			". Check that the kubelet runs; if its root directory is not /var/lib/kubelet, set the chart value " +
			"kubeletPlugin.kubeletPodResourcesDirectoryPath",
	})
}

// Allocations are device IDs by resource name.
type Allocations map[string][]string

// gpus returns the resource name of each served GPU, by PCI address. NVIDIA's device plugin uses the UUID of a GPU or
// MIG device or the GPU's index as ID, with a suffix for replicas. An unknown ID of an NVIDIA resource may mean any
// GPU, so it covers all.
func (a Allocations) gpus(snapshot gpu.Snapshot) map[string]string {
	out := map[string]string{}
	for _, resource := range slices.Sorted(maps.Keys(a)) {
		nvidia := resource == "nvidia.com/gpu" || strings.HasPrefix(resource, "nvidia.com/gpu.") ||
			strings.HasPrefix(resource, "nvidia.com/mig-")
		for _, id := range a[resource] {
			address, known := owner(snapshot, id, nvidia)
			switch {
			case known:
				out[address] = resource
			case nvidia:
				for _, g := range snapshot.GPUs {
					out[g.PCIAddress] = resource
				}
			}
		}
	}
	return out
}

// owner returns the GPU of a device plugin's ID.
func owner(snapshot gpu.Snapshot, id string, byIndex bool) (address string, known bool) {
	id, _, _ = strings.Cut(id, "::")
	index, err := strconv.Atoi(id)
	for _, g := range snapshot.GPUs {
		if g.UUID == id || byIndex && err == nil && g.Index == index {
			return g.PCIAddress, true
		}
		for _, p := range g.MIG.Partitions {
			if slices.ContainsFunc(p.Devices, func(d gpu.PartitionDevice) bool { return d.UUID == id }) {
				return g.PCIAddress, true
			}
		}
	}
	return "", false
}
