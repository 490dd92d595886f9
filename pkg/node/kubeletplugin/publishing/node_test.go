// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/metrics"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// held are records with an answer.
type held struct {
	plans      []plan.Plan
	incomplete bool
	err        error
}

func (h held) Held() ([]plan.Plan, bool, error) { return h.plans, h.incomplete, h.err }

// switched are recorded MIG modes, and stuck partitions.
type switched struct {
	gpus  map[string]bool
	stuck map[string][]gpu.Partition
	err   error
}

func (s switched) Stuck() (map[string][]gpu.Partition, error) { return s.stuck, nil }

func (s switched) Switched() (map[string]bool, error) { return s.gpus, s.err }

// noDevicePlugins is the answer of a kubelet without them.
type noDevicePlugins struct{}

func (noDevicePlugins) GPUs() (map[string]string, bool) { return nil, true }

// cordons are the known cordons of a Node.
type cordons wire.Cordons

func (c cordons) Cordoned() (wire.Cordons, bool) { return wire.Cordons(c), true }

func (cordons) Reserved() sets.Set[string] { return nil }

func (cordons) Owner() (types.UID, bool) { return "", false }

// newNode makes a Node without held devices, whose reports go to the test's log.
func newNode(t *testing.T, o NodeOptions) *Node {
	if o.Modes == nil {
		o.Modes = switched{}
	}
	if o.DevicePlugins == nil {
		o.DevicePlugins = noDevicePlugins{}
	}
	if o.Cordoned == nil {
		o.Cordoned = cordons{}
	}
	o.Records, o.Reports = held{}, notifytest.Reporter(func(err error) { t.Log(err) })
	return NewNode(env.Node, notify.NewTrigger(), o)
}

// take returns the newest value.
func take[T any](t *testing.T, n *notify.Newest[T]) T {
	t.Helper()
	value, ok := n.Take()
	if !ok {
		t.Fatal("there is no newer value")
	}
	return value
}

// fired reports whether the node's Trigger was fired since the last call.
func (n *Node) fired() bool {
	select {
	case <-n.Changed:
		return true
	default:
		return false
	}
}

func (n *Node) names(t *testing.T) (names []string) {
	t.Helper()
	slices, ok := n.build(features{}) // Without taints, what may not be given out is not there.
	if !ok {
		t.Fatal("nothing was built")
	}
	for _, s := range slices {
		for _, d := range s.Devices {
			names = append(names, d.Name)
		}
	}
	return names
}

func sharingAs(s sharing.Source) NodeOptions {
	return NodeOptions{Sharing: s}
}

func TestNode_HeldUnlikeSettings_TriggersAtPrepareAndRelease(t *testing.T) {
	slicing := func(_ gpu.GPU, _ string, standing v1beta1.Strategy) (sharing.Offer, bool) {
		return sharing.Offer{Strategy: cmp.Or(standing, v1beta1.StrategyTimeSlicing), Memory: 1 << 30, MaxShares: 2}, true
	}
	none := func(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool) {
		o, _ := slicing(g, profile, standing)
		return o, false
	}
	hidden := func(gpu.GPU, string) sharing.Placements { return sharing.NoPlacement }
	whole := plan.Device{Name: "gpu-0000-1b-00-0", Kind: gpu.KindGPU, PCIAddress: "0000:1b:00.0", UUID: "GPU-a"}
	share := func(strategy v1beta1.Strategy) plan.Device {
		d := whole
		d.ShareID, d.Share, d.Sharing.Strategy = "share", plan.Share{MemoryBytes: 1 << 30}, strategy
		return d
	}
	all := whole
	all.ShareID = "share"
	partition := whole
	partition.Kind, partition.Name = gpu.KindMIG, "gpu-0000-1b-00-0-mig-1g-10gb-3"
	partition.Partition = plan.Partition{Profile: "1g.10gb", Start: 3, Size: 1}
	for name, c := range map[string]struct {
		o      NodeOptions
		device plan.Device
		unlike bool
		// held and free are the device's isolation while the claim holds it and without claims; empty: not published.
		held, free string
	}{
		"share by the settings' strategy": {sharingAs(sharingtest.Source{OfferOf: slicing}), share(v1beta1.StrategyTimeSlicing), false, "time-slicing", "time-slicing"},
		"share by another strategy":       {sharingAs(sharingtest.Source{OfferOf: slicing}), share(v1beta1.StrategyMPS), true, "mps", "time-slicing"},
		"share of an unshared GPU":        {sharingAs(sharingtest.Source{OfferOf: none}), share(v1beta1.StrategyMPS), true, "mps", "hardware"},
		"a whole GPU, once shareable":     {sharingAs(sharingtest.Source{OfferOf: none}), all, true, "time-slicing", "hardware"},
		"a whole GPU, never shareable":    {sharingAs(sharingtest.Source{OfferOf: none}), whole, false, "hardware", "hardware"},
		"a hidden partition":              {sharingAs(sharingtest.Source{PlacementsOf: hidden}), partition, true, "hardware", ""},
		"a partition without partitions":  {NodeOptions{Settings: resourceslices.Settings{NoPartitions: true}}, partition, true, "hardware", ""},
		"a published partition":           {NodeOptions{}, partition, false, "hardware", "hardware"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.o)
			node := gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:1b:00.0", UUID: "GPU-a", MemoryBytes: 80 << 30, MIG: layouttest.H100()}}}
			if err := n.Found(t.Context(), node, nil); err != nil {
				t.Fatal(err)
			}
			isolation := func() string {
				slices, _ := n.build(allFeatures)
				for _, s := range slices {
					for _, d := range s.Devices {
						if value := d.Attributes["isolation"].StringValue; d.Name == c.device.Name && value != nil {
							if (*value != "hardware") != ptr.Deref(d.AllowMultipleAllocations, false) {
								t.Errorf("isolation %s, several allocations %v", *value, d.AllowMultipleAllocations)
							}
							return *value
						}
					}
				}
				return ""
			}
			if got := isolation(); got != c.free {
				t.Errorf("without claims: isolation %q, want %q", got, c.free)
			}
			n.fired()
			if n.Prepared([]devicestate.PreparedDevice{{Device: c.device}}); n.fired() != c.unlike {
				t.Errorf("Prepare: want a trigger %t", c.unlike)
			}
			n.o.Records = held{plans: []plan.Plan{{Devices: []plan.Device{c.device}}}}
			if got := isolation(); got != c.held {
				t.Errorf("held: isolation %q, want %q", got, c.held)
			}
			if n.Released(); n.fired() != c.unlike {
				t.Errorf("release: want a trigger %t", c.unlike)
			}
		})
	}
}

func TestNode_HeldLostAndUnknownGPUs_ArePublishedOrWithheld(t *testing.T) {
	var reports []error
	n := newNode(t, NodeOptions{})
	n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err) })
	if _, ok := n.build(allFeatures); ok {
		t.Error("slices without a scan")
	}
	both := gpu.Snapshot{Driver: gpu.Driver{Version: "580.1"}, GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", UUID: "GPU-a", ProductName: "NVIDIA H100"}, {PCIAddress: "0000:2b:00.0", UUID: "GPU-b"},
	}}
	if err := n.Found(t.Context(), both, nil); err != nil || !n.fired() {
		t.Fatal(err)
	}
	const a, b = "gpu-0000-1b-00-0", "gpu-0000-2b-00-0"
	one := []plan.Plan{{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: "0000:1b:00.0", UUID: "GPU-a"}}}}
	for name, tc := range map[string]struct {
		records held
		want    string
	}{
		"nothing held":                   {held{}, a + " " + b},
		"one held":                       {held{plans: one}, a + " " + b},
		"one held, one may be":           {held{plans: one, incomplete: true}, a},
		"any may be held":                {held{incomplete: true}, ""},
		"a device of another node's bus": {held{plans: []plan.Plan{{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: "0000:3b:00.0"}}}}}, a + " " + b + " gpu-0000-3b-00-0"},
	} {
		n.o.Records = tc.records
		if got := strings.Join(n.names(t), " "); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	// A fault of groups only does not make available what a claim with an unreadable record may hold.
	faulty := both
	faulty.GPUs = slices.Clone(both.GPUs)
	faulty.GPUs[1].Faults = []gpu.Fault{{State: health.DrainP2P}}
	if err := n.Found(t.Context(), faulty, nil); err != nil || !n.fired() {
		t.Error(err)
	}
	n.o.Records = held{plans: one, incomplete: true}
	if got := strings.Join(n.names(t), " "); got != a {
		t.Errorf("with a fault of groups: %q, want %q", got, a)
	}
	// The driver goes while a claim holds a GPU: it stays as it was, and its release is news.
	n.o.Records = held{plans: one}
	if err := n.Found(t.Context(), gpu.Snapshot{}, inventory.ErrNoDriver); err != nil {
		t.Error(err)
	}
	if got := strings.Join(n.names(t), " "); got != a {
		t.Errorf("without the driver: %q, want the one that is held", got)
	}
	built, _ := n.build(allFeatures)
	if name := built[0].Devices[0].Attributes["productName"].StringValue; name == nil || *name != "NVIDIA H100" {
		t.Errorf("a held GPU lost its attributes: %v", name)
	}
	n.fired()
	if n.Released(); !n.fired() {
		t.Error("a release that changes the slices does not trigger")
	}
	n.o.Records = held{}
	n.names(t)
	if n.Released(); n.fired() {
		t.Error("a release that changes nothing triggers")
	}
	// Records that cannot be read withdraw nothing and are reported.
	reports, n.o.Records = nil, held{err: errors.New("disk")}
	if _, ok := n.build(allFeatures); ok || len(reports) != 1 {
		t.Errorf("built without knowing what is held; reports %v", reports)
	}
	if err := n.Found(t.Context(), both, errors.New("NVML failed")); err != nil || len(reports) != 2 {
		t.Errorf("%v, reports %v", err, reports)
	}
	// NVML fails for long: every GPU is tainted until it answers, with one report for the node.
	reports, n.o.Records = nil, held{plans: one}
	silent := both
	silent.GPUs = slices.Clone(both.GPUs)
	silent.GPUs[1].Silent = true
	for _, tc := range []struct {
		found   gpu.Snapshot
		err     error
		want    string
		reports int
	}{
		{both, inventory.ErrHealthUnknown, a + " unknown " + b + " unknown", 1}, {both, nil, a + " " + b, 1},
		{silent, nil, a + " " + b + " unknown", 2}, {both, nil, a + " " + b, 2},
	} {
		if err := n.Found(t.Context(), tc.found, tc.err); err != nil || !n.fired() {
			t.Error(err)
		}
		built, _ := n.build(features{taints: true})
		var got []string
		for _, d := range built[0].Devices {
			got = append(got, d.Name)
			for _, taint := range d.Taints {
				got = append(got, taint.Value)
			}
		}
		if got := strings.Join(got, " "); got != tc.want || len(reports) != tc.reports {
			t.Errorf("%v: %s, want %s; reports %v", tc.err, got, tc.want, reports)
		}
	}
	if err := n.Found(t.Context(), gpu.Snapshot{}, nvml.ErrReplaced); !errors.Is(err, nvml.ErrReplaced) {
		t.Errorf("a replaced driver does not end the plugin: %v", err)
	}
}

// TestNode_NVMLHasNotAnswered_BuildsNothingForAMinute starts the plugin while NVML fails.
func TestNode_NVMLHasNotAnswered_BuildsNothingForAMinute(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		builds bool
	}{
		{"fails", fmt.Errorf("open NVML: %w", nvml.Unknown), false},
		{"is missing, and the kernel has the driver", fmt.Errorf("open NVML: %w", nvml.LibraryNotFound), false},
		{"is of another version", fmt.Errorf("open NVML: %w", nvml.LibRMMismatch), false},
		{"fails for long", fmt.Errorf("%w: %w", inventory.ErrHealthUnknown, nvml.Unknown), true},
		{"no driver", inventory.ErrNoDriver, true},
	} {
		n := newNode(t, NodeOptions{})
		if err := n.Found(t.Context(), gpu.Snapshot{}, c.err); err != nil {
			t.Error(err)
		}
		if _, ok := n.build(allFeatures); ok != c.builds {
			t.Errorf("NVML %s: slices built %v, want %v", c.name, ok, c.builds)
		}
		if err := n.Found(t.Context(), three, nil); err != nil {
			t.Error(err)
		}
		if got := len(n.names(t)); got != 3 {
			t.Errorf("NVML %s, then answers: %d devices", c.name, got)
		}
	}
}

var three = gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}, GPUs: []gpu.GPU{
	{PCIAddress: "0000:10:00.0", UUID: "GPU-a", Index: 0},
	{PCIAddress: "0000:11:00.0", UUID: "GPU-b", Index: 1, MIG: gpu.MIG{Partitions: []gpu.Partition{{Devices: []gpu.PartitionDevice{{UUID: "MIG-1"}}}}}},
	{PCIAddress: "0000:12:00.0", UUID: "GPU-c", Index: 2},
}}

type lister func(ctx context.Context) (podresources.Allocations, error)

func (l lister) DevicePlugins(ctx context.Context, _ bool) (podresources.Allocations, error) {
	return l(ctx)
}

func TestNode_GPUServedByADevicePlugin_IsWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []error
		type answer struct {
			served podresources.Allocations
			err    error
			after  time.Duration
		}
		answers := make(chan answer)
		scans := inventory.NewLatest()
		scans.Set(three)
		machine := host.New(host.Options{})
		defer machine.Close()
		records, err := record.OpenGPUs(machine, t.TempDir(), podresources.DevicePluginSetting)
		if err != nil {
			t.Fatal(err)
		}
		devicePlugins := podresources.NewDevicePlugins(podresources.DevicePluginsOptions{
			Kubelet: lister(func(ctx context.Context) (podresources.Allocations, error) {
				select {
				case a := <-answers:
					return a.served, a.err
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}),
			Scans: scans, Records: records, Host: machine, Lock: filepath.Join(t.TempDir(), "lock"),
			Changed: notify.NewTrigger(), Metrics: metrics.New(metrics.Options{}), Reports: notifytest.Reporter(nil),
		})
		n := newNode(t, NodeOptions{DevicePlugins: devicePlugins})
		n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err) })
		if err := n.Found(t.Context(), three, nil); err != nil {
			t.Fatal(err)
		}
		if _, ok := n.build(allFeatures); ok {
			t.Error("slices are published before the kubelet was asked")
		}
		ctx, stop := context.WithCancel(t.Context())
		go devicePlugins.Run(ctx)
		published := func(a answer) (names []string) {
			answers <- a
			synctest.Wait()
			slices, ok := n.build(allFeatures)
			if !ok {
				return nil
			}
			for _, s := range slices {
				for _, d := range s.Devices {
					if *d.Attributes["type"].StringValue == "gpu" {
						names = append(names, d.Name)
					}
				}
			}
			return names
		}
		const a, b, c = "gpu-0000-10-00-0", "gpu-0000-11-00-0", "gpu-0000-12-00-0"
		for _, step := range []struct {
			answer answer
			want   []string
		}{
			{answer{err: errors.New("no socket")}, nil},
			{answer{err: errors.New("no socket"), after: time.Hour}, nil}, // Silence is not the answer that nothing is served.
			{answer{served: podresources.Allocations{"nvidia.com/gpu": {"GPU-b"}}}, []string{a, c}},
			{answer{err: errors.New("restarting")}, []string{a, c}},
			{answer{served: podresources.Allocations{}}, []string{a, c}}, // The kubelet or the device plugin restarted.
			{answer{served: podresources.Allocations{"nvidia.com/gpu": {"GPU-b"}}}, []string{a, c}},
			{answer{served: podresources.Allocations{}}, []string{a, c}},
			{answer{served: podresources.Allocations{}, after: 5 * time.Minute}, []string{a, b, c}},
		} {
			time.Sleep(step.answer.after)
			if got := published(step.answer); !slices.Equal(got, step.want) {
				t.Errorf("after %+v: %v, want %v", step.answer, got, step.want)
			}
			if served, _ := devicePlugins.GPUs(); (served["0000:11:00.0"] == "nvidia.com/gpu") != (len(step.want) == 2) {
				t.Errorf("after %+v GPU b is served as %q", step.answer, served["0000:11:00.0"])
			}
		}
		if len(reports) != 1 {
			t.Errorf("reports %v", reports)
		}
		stop()
	})
}
