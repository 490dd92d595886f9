// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/metrics"
)

var three = gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}, GPUs: []gpu.GPU{
	{PCIAddress: "0000:10:00.0", UUID: "GPU-a", Index: 0},
	{PCIAddress: "0000:11:00.0", UUID: "GPU-b", Index: 1, MIG: gpu.MIG{Partitions: []gpu.Partition{{Devices: []gpu.PartitionDevice{{UUID: "MIG-1"}}}}}},
	{PCIAddress: "0000:12:00.0", UUID: "GPU-c", Index: 2},
}}

func TestAllocations_IDs_NameGPUs(t *testing.T) {
	all := func(resource string) map[string]string {
		return map[string]string{"0000:10:00.0": resource, "0000:11:00.0": resource, "0000:12:00.0": resource}
	}
	for name, c := range map[string]struct {
		served Allocations
		want   map[string]string
	}{
		"nobody":                         {nil, map[string]string{}},
		"by UUID":                        {Allocations{"nvidia.com/gpu": {"GPU-a", "GPU-c"}}, map[string]string{"0000:10:00.0": "nvidia.com/gpu", "0000:12:00.0": "nvidia.com/gpu"}},
		"replicas":                       {Allocations{"nvidia.com/gpu.shared": {"GPU-b::0", "GPU-b::1"}}, map[string]string{"0000:11:00.0": "nvidia.com/gpu.shared"}},
		"a partition":                    {Allocations{"nvidia.com/mig-1g.10gb": {"MIG-1"}}, map[string]string{"0000:11:00.0": "nvidia.com/mig-1g.10gb"}},
		"by index":                       {Allocations{"nvidia.com/gpu": {"2", "2::1"}}, map[string]string{"0000:12:00.0": "nvidia.com/gpu"}},
		"another name of the resource":   {Allocations{"example.com/gpu": {"GPU-a"}}, map[string]string{"0000:10:00.0": "example.com/gpu"}},
		"a network card":                 {Allocations{"nvidia.com/rdma": {"0", "eth0"}}, map[string]string{}},
		"an unknown ID may be any":       {Allocations{"nvidia.com/gpu": {"GPU-of-old"}}, all("nvidia.com/gpu")},
		"an index that is none":          {Allocations{"nvidia.com/gpu": {"9"}}, all("nvidia.com/gpu")},
		"a partition that is gone":       {Allocations{"nvidia.com/mig-1g.10gb": {"MIG-9"}}, all("nvidia.com/mig-1g.10gb")},
		"an ID of nothing":               {Allocations{"nvidia.com/gpu": {""}}, all("nvidia.com/gpu")},
		"a resource that has no devices": {Allocations{"nvidia.com/gpu": nil}, map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, c.served.gpus(three)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// testNode has a kubelet, a disk and boots, which outlive the process of a plugin.
type testNode struct {
	*testing.T
	dir     string
	host    *host.Host
	records *record.GPUs
	scans   *inventory.Latest
	changed notify.Trigger
	reports []error

	// offered are the allocations that the kubelet lists, kept those of its pods. err is its answer instead.
	offered, kept Allocations
	err           error
	// listed counts the answers with pods, polled all.
	listed, polled int
}

func newTestNode(t *testing.T) *testNode {
	n := &testNode{T: t, dir: t.TempDir()}
	n.boot("first")
	records, err := record.OpenGPUs(n.host, n.dir, DevicePluginSetting)
	if err != nil {
		t.Fatal(err)
	}
	n.records = records
	return n
}

// boot gives the machine a new boot ID.
func (n *testNode) boot(id string) {
	n.Helper()
	file := filepath.Join(n.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte(id+"\n"), 0o644); err != nil {
		n.Fatal(err)
	}
	n.host = host.New(host.Options{BootIDFile: file})
	n.Cleanup(n.host.Close)
}

// start returns the DevicePlugins of a new process, which has scanned three GPUs.
func (n *testNode) start() *DevicePlugins {
	n.scans, n.changed = inventory.NewLatest(), notify.NewTrigger()
	n.scans.Set(three)
	return NewDevicePlugins(DevicePluginsOptions{
		Kubelet: n, Scans: n.scans, Records: n.records, Host: n.host, Lock: filepath.Join(n.dir, "lock"), Changed: n.changed,
		Metrics: metrics.New(metrics.Options{}), Reports: notifytest.Reporter(func(err error) { n.reports = append(n.reports, err) }),
	})
}

// DevicePlugins implements Lister.
func (n *testNode) DevicePlugins(_ context.Context, pods bool) (Allocations, error) {
	n.polled++
	if n.err != nil {
		return nil, n.err
	}
	out := maps.Clone(n.offered)
	if pods {
		n.listed++
		for name, ids := range n.kept {
			out[name] = append(out[name], ids...)
		}
	}
	return out, nil
}

// fired reports whether the slices are to be built again.
func (n *testNode) fired() bool {
	select {
	case <-n.changed:
		return true
	default:
		return false
	}
}

// want compares the served GPUs, by the last character of their PCI bus, and whether they are known.
func (n *testNode) want(situation string, d *DevicePlugins, gpus string, known bool) {
	n.Helper()
	served, ok := d.GPUs()
	got := ""
	for _, address := range slices.Sorted(maps.Keys(served)) {
		got += address[6:7]
	}
	if got != gpus || ok != known {
		n.Errorf("%s: served %q (%v), known %v; want %q, %v", situation, got, served, ok, gpus, known)
	}
}

const (
	gpu0, gpu1 = "0000:10:00.0", "0000:11:00.0"
	resource   = "nvidia.com/gpu"
)

// TestDevicePlugins_NewProcess_NoAnswerIsNotAbsent starts a plugin in each state that an earlier process and the kubelet can
// leave. GPU 1 was served.
func TestDevicePlugins_NewProcess_NoAnswerIsNotAbsent(t *testing.T) {
	silent := errors.New("ask the kubelet at /pods/kubelet.sock: no such file")
	served, nobody := Allocations{resource: {"GPU-b"}}, Allocations{}
	for name, c := range map[string]struct {
		// before changes what the earlier process left.
		before func(n *testNode)
		// Each step is an answer after a time, and what follows from it.
		steps []step
	}{
		"the kubelet lists nothing after a reboot": {
			before: func(n *testNode) { n.boot("second") },
			steps: []step{
				{offered: nobody, want: "1", known: true},
				{offered: nobody, after: servedGrace - 1, want: "1", known: true},
				{offered: served, want: "1", known: true},
				{offered: nobody, after: servedGrace - 1, want: "1", known: true},
				{offered: nobody, after: 1, want: "", known: true},
			},
		},
		"kubelet and plugin restart together": {
			steps: []step{{offered: nobody, want: "1", known: true}, {offered: nobody, after: servedGrace, want: "", known: true}},
		},
		"the kubelet is silent, and lists nothing later": {
			before: func(n *testNode) { n.boot("second") },
			steps: []step{
				{err: silent, want: "1"},
				{err: silent, after: 2 * servedGrace, want: "1"},
				{offered: nobody, want: "1", known: true},
				{err: silent, after: servedGrace, want: "1", known: true}, // Silence ends no grace.
				{offered: nobody, after: servedGrace, want: "", known: true},
			},
		},
		"the boot ID cannot be read": {
			before: func(n *testNode) { n.host = host.New(host.Options{BootIDFile: filepath.Join(n.TempDir(), "none")}) },
			steps:  []step{{offered: nobody, want: "1", known: true}, {offered: nobody, after: servedGrace, want: "", known: true}},
		},
		"a damaged record": {
			before: func(n *testNode) { n.damage(gpu1, "{}") },
			steps: []step{
				{err: silent, want: "1"},
				{offered: nobody, want: "1", known: true},
				{offered: nobody, after: servedGrace, want: "", known: true},
			},
		},
		"a record that names no resource": {
			before: func(n *testNode) { n.put(record.GPU{PCIAddress: gpu1}) },
			steps:  []step{{offered: nobody, want: "1", known: true}, {offered: nobody, after: servedGrace, want: "", known: true}},
		},
		"the records cannot be listed": {
			before: func(n *testNode) { n.unlist() },
			steps:  []step{{offered: nobody, want: ""}, {offered: served, want: ""}},
		},
		"the driver is not loaded yet": {
			before: func(n *testNode) { n.boot("second") },
			steps: []step{
				{offered: nobody, scan: &gpu.Snapshot{}, want: "1", known: true},
				{offered: nobody, after: 2 * servedGrace, want: "1", known: true},
				{offered: nobody, scan: &three, want: "1", known: true},
				{offered: nobody, after: servedGrace - 1, want: "1", known: true},
				{offered: nobody, after: 1, want: "", known: true},
			},
		},
		"another GPU is served now": {
			steps: []step{{offered: Allocations{resource: {"GPU-a"}}, want: "01", known: true}},
		},
		"nothing was served": {
			before: func(n *testNode) { n.forget(gpu1) },
			steps:  []step{{err: silent, want: ""}, {offered: nobody, want: "", known: true}, {err: silent, want: "", known: true}},
		},
		"nothing was served, and the kubelet has another root directory": {
			before: func(n *testNode) { n.forget(gpu1) },
			steps:  []step{{err: silent, want: ""}, {err: silent, after: time.Hour, want: ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newTestNode(t)
				n.offered = served
				d := n.start()
				d.poll(t.Context())
				n.want("before", d, "1", true)
				if c.before != nil {
					c.before(n)
				}
				d = n.start()
				for i, s := range c.steps {
					time.Sleep(s.after)
					if s.scan != nil {
						n.scans.Set(*s.scan)
					}
					_, before := d.GPUs()
					n.offered, n.err = s.offered, s.err
					d.poll(t.Context())
					n.want(fmt.Sprintf("step %d", i), d, s.want, s.known)
					if s.known && !before && !n.fired() {
						t.Errorf("step %d: the first answer builds no slices", i)
					}
				}
			})
		})
	}
}

type step struct {
	after   time.Duration
	offered Allocations
	err     error
	scan    *gpu.Snapshot
	want    string
	known   bool
}

func (n *testNode) file(address string) string {
	return filepath.Join(n.dir, DevicePluginSetting, address+".json")
}

func (n *testNode) damage(address, text string) {
	n.Helper()
	if err := os.WriteFile(n.file(address), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) put(r record.GPU) {
	n.Helper()
	if err := n.records.Put(r); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) forget(address string) {
	n.Helper()
	if err := n.records.Remove(address); err != nil {
		n.Fatal(err)
	}
}

// unlist puts a file in the place of the directory.
func (n *testNode) unlist() {
	n.Helper()
	dir := filepath.Dir(n.file(gpu1))
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		n.Fatal(err)
	}
}

// TestDevicePlugins_Served_IsRecordedWithTheBoot compares the records with the served GPUs.
func TestDevicePlugins_Served_IsRecordedWithTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNode(t)
		d := n.start()
		n.offered = Allocations{resource: {"GPU-a", "GPU-b"}}
		d.poll(t.Context())
		for address, uuid := range map[string]string{gpu0: "GPU-a", gpu1: "GPU-b"} {
			r, err := n.records.Get(address)
			if want := (record.GPU{BootID: "first", PCIAddress: address, UUID: uuid, Served: resource}); err != nil || cmp.Diff(want, r) != "" {
				t.Errorf("%v: %+v, want %+v", err, r, want)
			}
		}
		n.offered = Allocations{"nvidia.com/gpu.shared": {"GPU-b::0"}}
		d.poll(t.Context())
		if r, err := n.records.Get(gpu1); err != nil || r.Served != "nvidia.com/gpu.shared" {
			t.Errorf("another resource: %+v, %v", r, err)
		}
		time.Sleep(servedGrace)
		d.poll(t.Context())
		if found, err := n.records.Addresses(); err != nil || !slices.Equal(found, []string{gpu1}) {
			t.Errorf("after the grace of GPU 0: %v, %v", found, err)
		}
		// The disk is full, or another process has the lock.
		n.unlist()
		n.offered = Allocations{resource: {"GPU-a"}}
		d.poll(t.Context())
		n.want("the disk fails", d, "01", true)
		if len(n.reports) != 1 || !strings.Contains(n.reports[0].Error(), "remember the GPUs that device plugins serve") {
			t.Errorf("reports %v", n.reports)
		}
	})
}

// TestDevicePlugins_KubeletSilent_EventNamesTheSocket has a kubelet that does not answer at the start, and later.
func TestDevicePlugins_KubeletSilent_EventNamesTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNode(t)
		n.err = errors.New("ask the kubelet at /pods/kubelet.sock: no such file")
		d := n.start()
		go d.Run(t.Context())
		reported := func(situation string, want int, texts ...string) {
			t.Helper()
			synctest.Wait()
			if len(n.reports) != want {
				t.Fatalf("%s: %d reports, want %d: %v", situation, len(n.reports), want, n.reports)
			}
			for _, text := range texts {
				if last := n.reports[want-1]; !strings.Contains(last.Error(), text) || claimerror.ReasonOf(last) != claimerror.KubeletUnreachable {
					t.Errorf("%s: %q lacks %q", situation, last, text)
				}
			}
		}
		time.Sleep(silentLimit - 1)
		reported("a starting kubelet", 0)
		time.Sleep(2 * firstInterval)
		reported("silent", 1, "/pods/kubelet.sock", "No GPU is published", "kubeletPodResourcesDirectoryPath")
		time.Sleep(silentRepeat - 3*firstInterval)
		reported("before the next Event", 1)
		time.Sleep(4 * firstInterval)
		reported("the next Event", 2)
		if n.polled < int((silentLimit+silentRepeat)/firstInterval) {
			t.Errorf("%d polls: the first answer is late", n.polled)
		}
		n.err, n.offered = nil, Allocations{}
		time.Sleep(firstInterval)
		select {
		case <-d.Answered():
		default:
			t.Error("not answered")
		}
		n.err = errors.New("ask the kubelet at /pods/kubelet.sock: refused")
		time.Sleep(2 * pollInterval)
		reported("silent again", 3, "/pods/kubelet.sock", "Its last answer stays valid")
	})
}

// TestDevicePlugins_KubeletFails_ForgetsNothing has the kubelet fail with an answer beside the error.
func TestDevicePlugins_KubeletFails_ForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNode(t)
		n.offered = Allocations{resource: {"GPU-a"}}
		d := n.start()
		d.poll(t.Context())
		n.err = errors.New("restarting")
		for range 3 {
			time.Sleep(servedGrace)
			d.poll(t.Context())
			n.want("no answer", d, "0", true)
		}
	})
}

// TestDevicePlugins_Polls_ListPodsWhileGPUsAreServed has a device plugin come and end while a pod keeps a device.
func TestDevicePlugins_Polls_ListPodsWhileGPUsAreServed(t *testing.T) {
	synctest.Test(t, testPolls)
}

func testPolls(t *testing.T) {
	n, changes := newTestNode(t), 0
	d := n.start()
	polls := func(times, wantListed, wantChanges, wantGPUs int) {
		t.Helper()
		for range times {
			d.poll(t.Context())
			if n.fired() {
				changes++
			}
		}
		if gpus, _ := d.GPUs(); n.listed != wantListed || changes != wantChanges || len(gpus) != wantGPUs {
			t.Errorf("pods listed %d times, %d changes, %d GPUs; want %d, %d, %d", n.listed, changes, len(gpus), wantListed, wantChanges, wantGPUs)
		}
	}
	n.offered = Allocations{"example.com/nic": {"eth0"}}
	polls(podsEvery, 1, 1, 0)
	polls(podsEvery, 2, 1, 0)
	polls(1, 3, 1, 0)
	n.offered["nvidia.com/gpu"] = []string{"GPU-a", "GPU-b"}
	n.kept = Allocations{"nvidia.com/gpu": {"GPU-a"}}
	polls(2, 4, 2, 2)
	// The kubelet restarts: the device plugin registers again, but only after some answers without it.
	delete(n.offered, "nvidia.com/gpu")
	polls(2, 6, 2, 2)
	time.Sleep(servedGrace - 1)
	polls(2, 8, 2, 2)
	n.offered["nvidia.com/gpu"] = []string{"GPU-a", "GPU-b"}
	polls(1, 9, 2, 2)
	// The device plugin ends.
	delete(n.offered, "nvidia.com/gpu")
	polls(1, 10, 2, 2)
	time.Sleep(servedGrace)
	polls(2, 12, 3, 1)
	n.kept = nil
	polls(1, 13, 3, 1)
	time.Sleep(servedGrace)
	polls(1, 14, 4, 0)
}

// TestDevicePlugins_ServedPartitionGone_KeepsItsGPUOnly has a device plugin end whose partition is destroyed then. Its ID
// is unknown, and must not cover all GPUs.
func TestDevicePlugins_ServedPartitionGone_KeepsItsGPUOnly(t *testing.T) {
	n := newTestNode(t)
	d := n.start()
	n.offered = Allocations{"nvidia.com/mig-1g.10gb": {"MIG-1"}}
	d.poll(t.Context())
	n.offered = nil
	d.poll(t.Context())
	without := three
	without.GPUs = slices.Clone(three.GPUs)
	without.GPUs[1].MIG = gpu.MIG{}
	n.scans.Set(without)
	if served, _ := d.GPUs(); !maps.Equal(served, map[string]string{gpu1: "nvidia.com/mig-1g.10gb"}) {
		t.Errorf("served %v", served)
	}
}
