// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
	"gpu-dra-driver/pkg/node/sharing"
	"gpu-dra-driver/pkg/node/sharing/sharingtest"
	"gpu-dra-driver/sim/profiles"
)

var update = flag.Bool("update", false, "write the catalogue anew")

// node returns the slices of a simulated node.
func node(t *testing.T, profile string) (out []resourceapi.ResourceSlice) {
	t.Helper()
	published, err := slicetest.Node(profile, "n1", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range published {
		out = append(out, *s)
	}
	return out
}

// wantSlices shows the first slice that differs. cmp.Diff of all takes a minute.
func wantSlices(t *testing.T, what string, want, got Template) {
	t.Helper()
	if len(want.Slices) != len(got.Slices) {
		t.Errorf("%s: %d slices, want %d", what, len(got.Slices), len(want.Slices))
		return
	}
	for i := range want.Slices {
		if !equality.Semantic.DeepEqual(want.Slices[i], got.Slices[i]) {
			t.Errorf("%s, slice %d (-want +got)\n%s", what, i, cmp.Diff(want.Slices[i], got.Slices[i]))
			return
		}
	}
}

// encode writes a Snapshot as an entry of the catalogue: the fields that all GPUs share once.
func encode(t *testing.T, s gpu.Snapshot) []byte {
	t.Helper()
	var gpus []map[string]json.RawMessage
	common := map[string]json.RawMessage{}
	for i, g := range s.GPUs {
		g.UUID, g.Bridges = "", nil // The placeholder and the slices need neither.
		data, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		gpus = append(gpus, fields)
		for name, value := range fields {
			if i == 0 {
				common[name] = value
			}
		}
	}
	for name, value := range common {
		if slices.ContainsFunc(gpus, func(g map[string]json.RawMessage) bool { return !bytes.Equal(g[name], value) }) {
			delete(common, name)
		}
	}
	for _, g := range gpus {
		for name := range common {
			delete(g, name)
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	if err := e.Encode(map[string]any{"driver": s.Driver, "machine": s.Machine, "common": common, "gpus": gpus}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestBoards_Catalogue_EqualsSimulator keeps the catalogue and the simulator together.
func TestBoards_Catalogue_EqualsSimulator(t *testing.T) {
	for _, name := range profiles.Names() {
		s, err := slicetest.Scan(name, "n1", 0)
		if err != nil {
			t.Fatal(err)
		}
		path, got := filepath.Join("boards", name+".json"), encode(t, s)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got) {
			t.Errorf("%s differs from the simulator (%v): go test ./pkg/node/nodetemplate -update", path, err)
		}
	}
	if diff := cmp.Diff(profiles.Names(), Boards()); diff != "" {
		t.Errorf("boards (-simulator +catalogue)\n%s", diff)
	}
}

// TestTemplates_BoardAndNode_PredictTheSame compares both predictions for a board: nothing but the assumptions differs.
func TestTemplates_BoardAndNode_PredictTheSame(t *testing.T) {
	for _, name := range Boards() {
		fromBoard, err := FromBoard(name, slicetest.Driver, "new")
		if err != nil {
			t.Fatal(err)
		}
		published := node(t, name)
		for _, s := range published {
			for _, d := range s.Spec.Devices {
				for i := range d.Taints {
					d.Taints[i].TimeAdded = new(metav1.Now())
				}
			}
		}
		fromNode, err := FromNode(published, "new")
		if err != nil {
			t.Fatal(err)
		}
		wantSlices(t, name, fromNode, fromBoard)
	}
	if _, err := FromBoard("dgx-2", slicetest.Driver, "new"); err == nil || !strings.Contains(err.Error(), "hgx-h100") {
		t.Errorf("an unknown board: %v", err)
	}
}

// TestFromNode_Placeholders_MatchAsOnTheNode compares which devices have equal values before and after, as constraints do.
func TestFromNode_Placeholders_MatchAsOnTheNode(t *testing.T) {
	published := node(t, "hgx-h100")
	predicted, err := FromNode(published, "new")
	if err != nil {
		t.Fatal(err)
	}
	values := func(all []resourceapi.ResourceSlice, name resourceapi.QualifiedName) map[string]string {
		out := map[string]string{}
		for _, s := range all {
			for _, d := range s.Spec.Devices {
				out[d.Name] = text(d, name)
			}
		}
		return out
	}
	for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID", "nvlinkGroup", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/pciBusID"} {
		was, is, to := values(published, name), values(predicted.Slices, name), map[string]string{}
		for device, value := range was {
			if first, ok := to[value]; ok && first != is[device] || (value == "") != (is[device] == "") {
				t.Errorf("%s of %s: %q became %q, and %q elsewhere", name, device, value, is[device], first)
			}
			to[value] = is[device]
		}
		if distinct := slices.Compact(slices.Sorted(maps.Values(to))); len(distinct) != len(to) {
			t.Errorf("%s: %d values became %d", name, len(to), len(distinct))
		}
	}
	uuids, parents := values(predicted.Slices, "uuid"), values(predicted.Slices, "parentUUID")
	if parents["gpu-0000-1b-00-0-mig-1g-10gb-0"] != uuids["gpu-0000-1b-00-0"] || uuids["gpu-0000-1b-00-0"] == "" {
		t.Errorf("a partition of %q has the parent %q", uuids["gpu-0000-1b-00-0"], parents["gpu-0000-1b-00-0-mig-1g-10gb-0"])
	}
}

// TestFromNode_UnhealthyNode_PredictsHealthyOne taints devices, adds a partition that exists, and a fabric.
func TestFromNode_UnhealthyNode_PredictsHealthyOne(t *testing.T) {
	want, err := FromNode(node(t, "hgx-h100"), "new")
	if err != nil {
		t.Fatal(err)
	}
	published := node(t, "hgx-h100")
	unhealthy := func(state resourceslices.State) []resourceapi.DeviceTaint {
		return []resourceapi.DeviceTaint{{Key: resourceslices.UnhealthyTaint, Value: string(state), Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	partition := ""
	for i := range published {
		for j := range published[i].Spec.Devices {
			d := &published[i].Spec.Devices[j]
			switch kind := text(*d, "type"); {
			case kind == "gpu":
				d.Taints = append(unhealthy("reset"), resourceapi.DeviceTaint{Key: resourceslices.CordonTaint}, resourceapi.DeviceTaint{Key: resourceslices.ReservedTaint})
				d.Attributes["cliqueID"] = resourceapi.DeviceAttribute{IntValue: new(int64(3))}
			case kind == "mig" && partition == "":
				partition = d.Name
				d.Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: new("MIG-1")}
			}
		}
	}
	// An ending partition and a group without links are not on a new node.
	last := &published[len(published)-2].Spec
	extra := last.Devices[0]
	extra.Name, extra.Taints = "ending", unhealthy(resourceslices.NoDemand)
	last.Devices = append(slices.Clone(last.Devices), extra)
	old := *published[0].DeepCopy()
	old.Name, old.Spec.Pool.Generation = "old", 0
	got, err := FromNode(append(published, old), "new")
	if err != nil {
		t.Fatal(err)
	}
	wantSlices(t, "a healthy node", want, got)
	all := strings.Join(got.Assumptions, "\n")
	for _, part := range []string{"are unavailable on the node", "cliqueID is left out", "external, and a new node does not have them yet: " + partition} {
		if !strings.Contains(all, part) {
			t.Errorf("no %q in\n%s", part, all)
		}
	}
	if strings.Contains(all, "partitions only") {
		t.Errorf("all GPUs are whole:\n%s", all)
	}
}

func TestFromNode_WholeGPUNotPublished_IsSaid(t *testing.T) {
	published := node(t, "hgx-h100")
	first := &published[0].Spec
	first.Devices = slices.DeleteFunc(first.Devices, func(d resourceapi.Device) bool { return d.Name == "gpu-0000-1b-00-0" })
	got, err := FromNode(published, "new")
	if err != nil || !strings.Contains(strings.Join(got.Assumptions, "\n"), "partitions only, and a new node has them whole if no administrator cuts them: 0000:1b:00.0") {
		t.Errorf("%v, %v", got.Assumptions, err)
	}
}

// TestFromNode_PublishesOnDemand_IsSaid predicts by nodes that publish placements and groups once an object asks for them. The
// prediction lacks the others.
func TestFromNode_PublishesOnDemand_IsSaid(t *testing.T) {
	const (
		partitions = "the node publishes few placements of these profiles, because no object asks for them, and a new node publishes the others on " +
			"demand; --board predicts all placements: "
		groups = "the node publishes no NVLink groups: no object asks for them, or its settings exclude them; --board predicts them, here those of "
		asked  = "publish: [{profiles: [Auto, 1g.10gb], groups: Auto}]"
		none   = "the node publishes no partitions, because no object asks for them, and a new node publishes them on demand; --board predicts " +
			"them, here those of NVIDIA H100 80GB HBM3"
	)
	type node struct {
		board    string
		gpus     int
		settings string
		want     []string
		// elsewhere means that another node publishes the placements of the profiles that no object asks for.
		elsewhere bool
	}
	nodes := map[string]node{
		"eight GPUs": {"hgx-h100", 8, asked, []string{
			partitions + "1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb", groups + "nvlink-8-0000-1b-00-0",
		}, false},
		"eight GPUs, another node has the placements": {"hgx-h100", 8, "publish: [{profiles: Auto}]", []string{none}, true},
		// A GPU has one placement of the profiles that take more than half of it.
		"one GPU":     {"hgx-h100", 1, asked, []string{partitions + "1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb"}, false},
		"no groups":   {"hgx-h100", 8, "publish: [{groups: None}]", []string{groups + "nvlink-8-0000-1b-00-0"}, false},
		"no profiles": {"hgx-h100", 1, "publish: [{profiles: None}]", nil, true},
	}
	for _, board := range Boards() {
		nodes[board] = node{board, 0, "publish: []", nil, false}
	}
	for name, n := range nodes {
		settings, _, err := sharing.Parse([]byte("version: v1\n" + n.settings))
		if err != nil {
			t.Fatal(err)
		}
		snapshot, err := slicetest.Scan(n.board, "n1", n.gpus)
		if err != nil {
			t.Fatal(err)
		}
		var published []resourceapi.ResourceSlice
		for _, s := range slicetest.Slices(snapshot, "n1", settings, func(o *resourceslices.Options) {
			o.Sharing = sharing.Node{Name: "n1", Settings: settings, MPS: true, Demand: sharingtest.NoDemand{Elsewhere: n.elsewhere}}
		}) {
			published = append(published, *s)
		}
		predicted, err := FromNode(published, "new")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range predicted.Assumptions {
			if strings.HasPrefix(a, "the node publishes") {
				got = append(got, a)
			}
		}
		if diff := cmp.Diff(n.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestFromNode_SlicesMissingOrMixed_ReturnsError(t *testing.T) {
	published := node(t, "hgx-h100")
	if _, err := FromNode(published[1:], "new"); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("an incomplete pool: %v", err)
	}
	published[0].Spec.NodeName = new("other")
	if _, err := FromNode(published, "new"); err == nil || !strings.Contains(err.Error(), "several") {
		t.Errorf("slices of two nodes: %v", err)
	}
}

// TestKarpenter_Partitions_AreBoundToTheirGPU checks the values that a provider cannot know, and the devices that it must
// not offer.
func TestKarpenter_Partitions_AreBoundToTheirGPU(t *testing.T) {
	template, err := FromBoard("hgx-h100", slicetest.Driver, "new")
	if err != nil {
		t.Fatal(err)
	}
	k := template.Karpenter()
	devices := map[string]karpenterDevice{}
	for _, s := range k.ResourceSliceTemplates {
		if len(s.Devices) > 0 == (len(s.SharedCounters) > 0) {
			t.Errorf("a slice has %d devices and %d counter sets", len(s.Devices), len(s.SharedCounters))
		}
		for _, d := range s.Devices {
			devices[d.Name] = d
			if _, ok := d.Attributes["uuid"]; ok || *d.Attributes["type"].StringValue == "monitor" {
				t.Errorf("%s: %v", d.Name, d.Attributes)
			}
		}
	}
	if len(k.AttributeBindings) != 8 {
		t.Fatalf("%d bindings for 8 GPUs", len(k.AttributeBindings))
	}
	for _, b := range k.AttributeBindings {
		address := ""
		for _, id := range b.Devices {
			d := devices[id.Device]
			of := *d.Attributes["resource.kubernetes.io/pciBusID"].StringValue
			if address == "" {
				address = of
			}
			if b.Attribute != "gpu.nvidia.com/parentUUID" || of != address || id.Pool != "new/gpu" || len(d.ConsumesCounters) == 0 {
				t.Errorf("%s is bound to a partition of %s by %s", id.Device, address, b.Attribute)
			}
		}
	}
}

// TestInstances_EachType_HasABoardWithSoManyGPUs reads the whole table.
func TestInstances_EachType_HasABoardWithSoManyGPUs(t *testing.T) {
	all := Instances()
	for i, one := range all {
		predicted, err := FromInstance(strings.ToUpper(one.Name), "gpu.nvidia.com", "n")
		if err != nil {
			t.Fatal(err)
		}
		gpus, groups := 0, 0
		for _, s := range predicted.Slices {
			for _, d := range s.Spec.Devices {
				switch *d.Attributes["type"].StringValue {
				case "gpu":
					gpus++
				case "nvlink-group":
					groups++
				}
			}
		}
		if gpus != one.GPUs || gpus == 0 || gpus == 1 && groups > 0 {
			t.Errorf("%s of board %s has %d GPUs and %d groups, want %d GPUs", one.Name, one.Board, gpus, groups, one.GPUs)
		}
		if i > 0 && all[i-1].Name == one.Name {
			t.Errorf("%s is there twice", one.Name)
		}
	}
	if len(all) < 40 {
		t.Errorf("%d instance types", len(all))
	}
}
