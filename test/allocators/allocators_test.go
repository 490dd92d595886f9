// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package allocators compares the table of pkg/wire/schedulerfault with the allocator of every patch of Kubernetes, over the
// slices that the driver publishes.
package allocators

import (
	"errors"
	"fmt"

	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// served are the features that an API server of a minor version can have. 1.34 refuses counters in slices of their own.
func (a allocator) served() []schedulerfault.Features {
	all := []schedulerfault.Features{{}, {Shares: true}, {Counters: true}, {Counters: true, Shares: true}}
	if a.minor.version == 34 {
		return all[:2]
	}
	return all
}

func (a allocator) versions() (out []schedulerfault.Version) {
	for _, patch := range a.patches {
		out = append(out, schedulerfault.Version{Minor: a.minor.version, Patch: patch})
	}
	return out
}

// world is a node, its GPUs and all that can be published of them.
type world struct {
	node
	snapshot gpu.Snapshot
	devices  map[string]resourceapi.Device
}

func worlds(t *testing.T) (out []*world) {
	t.Helper()
	for _, n := range nodes {
		s, err := slicetest.Scan(n.board, "n1", n.gpus)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{node: n, snapshot: s, devices: map[string]resourceapi.Device{}}
		for _, slice := range w.slices(schedulerfault.Features{Counters: true, Shares: true}, schedulerfault.Features{}, nil) {
			for _, d := range slice.Spec.Devices {
				w.devices[d.Name] = d
			}
		}
		out = append(out, w)
	}
	return out
}

// slices returns what the driver publishes on a server with the features, without those that it leaves out.
func (w *world) slices(served, without schedulerfault.Features, held []resourceslices.Held) (out []*resourceapi.ResourceSlice) {
	const name = "n1"
	offered := served.Without(without)
	pool, _ := resourceslices.Build(w.snapshot, nil, resourceslices.Options{
		Node: name, Taints: true, NoEffectTaints: true, Held: held,
		SharedDevices: offered.Shares, HeldShares: served.Shares && !offered.Shares, Counters: offered.Counters,
		Settings: resourceslices.Settings{AllowReset: true}, Sharing: sharing.Node{MPS: true},
	})
	count := map[string]int64{}
	for _, s := range pool.Slices {
		count[wire.PoolOf(name, s.Devices)]++
	}
	for i, s := range pool.Slices {
		of := wire.PoolOf(name, s.Devices)
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: new(name), Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: of, Generation: 1, ResourceSliceCount: count[of]},
			},
		})
	}
	return out
}

// allocated are the devices of claims, by the claim's name.
type allocated map[string][]resourceapi.DeviceRequestAllocationResult

// follow applies a step and its result, and returns an error for a crash or a device that two claims have.
func (w *world) follow(claims allocated, s step, r result) error {
	if r.Panic != "" {
		return fmt.Errorf("the allocator crashes: %s", r.Panic)
	}
	for _, name := range s.Release {
		delete(claims, name)
	}
	for i, devices := range r.Devices {
		claims[s.Allocate[i].Name] = devices
	}
	return w.check(claims)
}

// use is a device of a claim: a part of GPUs, which it has alone or shares with other users of the device.
type use struct {
	device resourceapi.Device
	parsed gpu.Device
	shared bool
}

// check fails if GPUs or parts of them are allocated twice. It knows the boards, and does not look at counters.
func (w *world) check(claims allocated) error {
	var uses []use
	taken := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	for _, devices := range claims {
		for _, r := range devices {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			d, ok := w.devices[r.Device]
			parsed, err := gpu.ParseName(r.Device)
			if !ok || err != nil {
				return fmt.Errorf("device %s: known %v, %w", r.Device, ok, err)
			}
			uses = append(uses, use{d, parsed, r.ShareID != nil})
			if taken[r.Device] == nil {
				taken[r.Device] = map[resourceapi.QualifiedName]resource.Quantity{}
			}
			for name, q := range r.ConsumedCapacity {
				sum := taken[r.Device][name]
				sum.Add(q)
				taken[r.Device][name] = sum
				if sum.Cmp(d.Capacity[name].Value) > 0 {
					total := d.Capacity[name].Value
					return fmt.Errorf("%s of %s is allocated %s of %s", name, r.Device, sum.String(), total.String())
				}
			}
		}
	}
	for i, a := range uses {
		for _, b := range uses[:i] {
			if a.device.Name == b.device.Name && a.shared && b.shared {
				continue
			}
			if w.overlap(a.parsed, b.parsed) {
				return fmt.Errorf("%s and %s are allocated at once", b.device.Name, a.device.Name)
			}
		}
	}
	return nil
}

// overlap reports whether two devices have a part of a GPU in common.
func (w *world) overlap(a, b gpu.Device) bool {
	for _, x := range w.parts(a) {
		for _, y := range w.parts(b) {
			if x.address == y.address && x.place.Overlaps(y.place) {
				return true
			}
		}
	}
	return false
}

type part struct {
	address string
	place   gpu.Placement
}

// parts returns the memory slices of GPUs that a device has.
func (w *world) parts(d gpu.Device) (out []part) {
	whole := gpu.Placement{Size: 1 << 10}
	switch d.Kind {
	case gpu.KindGPU:
		return []part{{d.PCIAddress, whole}}
	case gpu.KindGroup: // The node's GPUs are on one switch, so a group has GPUs that follow each other.
		i := slices.IndexFunc(w.snapshot.GPUs, func(g gpu.GPU) bool { return g.PCIAddress == d.PCIAddress })
		for _, g := range w.snapshot.GPUs[i : i+d.Size] {
			out = append(out, part{g.PCIAddress, whole})
		}
	case gpu.KindMIG:
		g, _ := w.snapshot.ByAddress(d.PCIAddress)
		p, _ := g.MIG.ProfileNamed(d.Profile)
		for _, place := range p.Placements {
			if place.Start == d.Start {
				out = append(out, part{d.PCIAddress, place})
			}
		}
	}
	return out
}

// answers runs the documented forms of claims and random claims, and returns an error for each wrong answer, by its form.
func (w *world) answers(t *testing.T, a allocator, served, without schedulerfault.Features) map[string]error {
	t.Helper()
	in := input{Node: "n1", Classes: classes(), Slices: map[string][]*resourceapi.ResourceSlice{"all": w.slices(served, without, nil)}}
	offered := served.Without(without)
	var all []form
	for _, f := range forms(w.node) {
		if (!f.counters || offered.Counters) && (!f.shares || offered.Shares) {
			all = append(all, f)
		}
	}
	for seed := range uint64(2) {
		all = append(all, form{name: fmt.Sprint("random claims ", seed), steps: walk(w.node, seed, 60)})
	}
	for i := range all {
		all[i].steps[0].Slices = "all"
		in.Scenarios = append(in.Scenarios, scenario{Shares: served.Shares, Counters: served.Counters, Steps: all[i].steps})
	}
	out := map[string]error{}
	for i, results := range a.run(t, in) {
		claims := allocated{}
		for k, r := range results {
			err := w.follow(claims, all[i].steps[k], r)
			n := 0
			for _, devices := range r.Devices {
				n += len(devices)
			}
			if err == nil && all[i].want != nil && n != all[i].want[k] {
				err = fmt.Errorf("%w: step %d has %d devices, want %d: %s", errWrong, k+1, n, all[i].want[k], r.Error)
			}
			if err != nil {
				out[all[i].name] = err
				break
			}
		}
	}
	return out
}

// errWrong is a wrong answer without a crash and without a device that two claims have.
var errWrong = errors.New("a device is left over, or missing")

// shows are the words of the error that a fault causes.
var shows = map[string]string{
	"all-mode-panics": "crashes", "shared-counters-ignored": "at once", "reservations-kept": errWrong.Error(), "first-device-only": errWrong.Error(),
}

// TestAllocators_EveryPatch_AsInTheTable checks each patch, for each set of features that an API server can have. It answers
// right unless the table has a fault for it. Each fault of the table shows. With the slices that the driver publishes
// because of the fault, nothing is allocated twice and nothing crashes.
func TestAllocators_EveryPatch_AsInTheTable(t *testing.T) {
	if *update {
		updateSums(t)
	}
	boards := worlds(t)
	tested := map[string]bool{}
	for _, a := range allocators(t) {
		for _, served := range a.served() {
			for _, v := range a.versions() {
				if !slices.Equal(names(schedulerfault.Of(v, served)), names(schedulerfault.Of(a.versions()[0], served))) {
					t.Errorf("%s and %s have the same source, and different faults in the table", v, a.versions()[0])
				}
				tested[v.String()] = true
			}
			faults := schedulerfault.Of(a.versions()[0], served)
			wrong := map[string]error{}
			for _, w := range boards {
				for form, err := range w.answers(t, a, served, schedulerfault.Features{}) {
					wrong[w.board+", "+form] = err
				}
			}
			for _, f := range faults {
				if !contains(wrong, shows[f.Name]) {
					t.Errorf("%s with %+v: the fault %s of the table does not show", a, served, f.Name)
				}
			}
			for form, err := range wrong {
				if !slices.ContainsFunc(faults, func(f schedulerfault.Fault) bool { return strings.Contains(err.Error(), shows[f.Name]) }) {
					t.Errorf("%s with %+v: %s: %v, and the table has no such fault", a, served, form, err)
				}
			}
			for _, w := range boards {
				left := served.Without(schedulerfault.Without(faults))
				for form, err := range w.answers(t, a, served, schedulerfault.Without(faults)) {
					allowed := slices.ContainsFunc(schedulerfault.Of(a.versions()[0], left), func(f schedulerfault.Fault) bool {
						return f.Without == schedulerfault.Features{}
					})
					if !allowed || !errors.Is(err, errWrong) {
						t.Errorf("%s with %+v, reduced to %+v: %s, %s: %v", a, served, left, w.board, form, err)
					}
				}
			}
		}
	}
	for _, f := range schedulerfault.Faults() {
		if !everyPatch {
			break
		}
		if !tested[schedulerfault.Version{Minor: f.Minor}.String()] || f.FixedIn > 0 && !tested[f.Upgrade()] {
			t.Errorf("%s of %s: the first patch or the mend is not among the tested ones", f.Name, f.Versions())
		}
	}
}

func names(faults []schedulerfault.Fault) (out []string) {
	for _, f := range faults {
		out = append(out, f.Name)
	}
	return out
}

func contains(errs map[string]error, text string) bool {
	for _, err := range errs {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// TestAllocators_FeaturesLeftOutUnderClaims_NothingIsAllocatedTwice leaves out features while claims hold devices. It does so
// with every patch, because an unknown version can be any.
func TestAllocators_FeaturesLeftOutUnderClaims_NothingIsAllocatedTwice(t *testing.T) {
	w := worlds(t)[0]
	everything := schedulerfault.Features{Counters: true, Shares: true}
	for _, a := range allocators(t) {
		served := a.served()[len(a.served())-1]
		for name, c := range map[string]*resourceapi.ResourceClaim{
			"a whole GPU": claim("a", exactly(gpuClass, 1)), "a share": claim("a", share("10Gi", exactly(gpuClass, 1))),
			"a partition": claim("a", exactly(migClass, 1, profile(w.small))), "a shared partition": claim("a", share("2Gi", exactly(migClass, 1, profile(w.half)))),
			"a group": claim("a", exactly(groupClass, 1, groupOf(2))), "a monitor": monitor(claim("a", exactly(monitorClass, 1))),
		} {
			before := scenario{Shares: served.Shares, Counters: served.Counters, Steps: []step{{Slices: "before", Allocate: []*resourceapi.ResourceClaim{c}}}}
			in := input{Node: "n1", Classes: classes(), Scenarios: []scenario{before}, Slices: map[string][]*resourceapi.ResourceSlice{
				"before": w.slices(served, schedulerfault.Features{}, nil),
			}}
			devices := a.run(t, in)[0][0].Devices
			if len(devices) == 0 {
				if served.Counters {
					t.Errorf("%s: %s is not allocated", a, name)
				}
				continue
			}
			in.Slices["after"] = w.slices(served, everything, w.held(t, devices[0]))
			after := before
			after.Steps = append(slices.Clone(before.Steps), step{Slices: "after", Allocate: []*resourceapi.ResourceClaim{claim("all", exactly(gpuClass, 0))}})
			for i := range w.gpus + 1 {
				after.Steps = append(after.Steps, pod(claim(fmt.Sprint("one", i), exactly(gpuClass, 1))))
			}
			after.Steps = append(after.Steps, pod(claim("mig", exactly(migClass, 0))), pod(claim("group", exactly(groupClass, 1))), release("all"))
			for i := range w.gpus + 1 {
				after.Steps = append(after.Steps, pod(claim(fmt.Sprint("two", i), exactly(gpuClass, 1))))
			}
			in.Scenarios = []scenario{after}
			claims := allocated{}
			for i, r := range a.run(t, in)[0] {
				if err := w.follow(claims, after.Steps[i], r); err != nil {
					t.Errorf("%s, %s: step %d: %v", a, name, i+1, err)
					break
				}
			}
		}
	}
}

// held returns the devices as the records of a prepared claim name them.
func (w *world) held(t *testing.T, results []resourceapi.DeviceRequestAllocationResult) (out []resourceslices.Held) {
	t.Helper()
	for _, r := range results {
		d, err := gpu.ParseName(r.Device)
		if err != nil {
			t.Fatal(err)
		}
		addresses := []string{d.PCIAddress}
		if d.Kind == gpu.KindGroup {
			addresses = nil
			for _, p := range w.parts(d) {
				addresses = append(addresses, p.address)
			}
		}
		for _, address := range addresses {
			g, _ := w.snapshot.ByAddress(address)
			h := resourceslices.Held{Device: d, GPU: g, Share: r.ShareID != nil}
			if d.Kind == gpu.KindMIG {
				h.Size = w.parts(d)[0].place.Size
			}
			out = append(out, h)
		}
	}
	return out
}
