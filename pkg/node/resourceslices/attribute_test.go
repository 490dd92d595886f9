// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

func TestSemver_DriverVersions_AreNormalised(t *testing.T) {
	for raw, want := range map[string]string{
		"580.126.09": "580.126.9", "535.54.03": "535.54.3", "13.0": "13.0.0", "12.4": "12.4.0", "9": "9.0.0",
		"565.57.01": "565.57.1", "0.0.0": "0.0.0",
	} {
		if got, err := semver(raw); got != want || err != nil {
			t.Errorf("semver(%q) = %q, %v; want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{"", ".", "580.126.09.1", "580.beta", "v1.2.3", "1..2", " 1.2", "1.2.99999999999999999999", "-1.2"} {
		if got, err := semver(raw); err == nil {
			t.Errorf("semver(%q) = %q, want an error", raw, got)
		}
	}
}

func FuzzSemver(f *testing.F) {
	for _, s := range []string{"580.126.09", "13.0", "1.2.3-x", "00.00.00", "٣.٤"} {
		f.Add(s)
	}
	strict := regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$`)
	f.Fuzz(func(t *testing.T, raw string) {
		if got, err := semver(raw); err == nil && (!strict.MatchString(got) || len(got) > 64) {
			t.Errorf("semver(%q) = %q, which the API refuses", raw, got)
		}
	})
}

func FuzzTruncate(f *testing.F) {
	for _, s := range []string{"NVIDIA H100", strings.Repeat("ü", 40), "\xff\xfe", strings.Repeat("a", 63) + "€"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := truncate(s, 64); len(got) > 64 || !utf8.ValidString(got) {
			t.Errorf("truncate(%q) = %q", s, got)
		}
	})
}

func TestBuild_ValueTheAPIRefuses_TruncatesOrOmitsWithWarning(t *testing.T) {
	s := node(1)
	s.Driver.Version = "580.beta.1"
	s.GPUs[0].ProductName = strings.Repeat("ü", 33)
	s.GPUs[0].MemoryBytes = math.MaxUint64
	p, warnings := Build(s, nil, full)
	d := p.Slices[0].Devices[0]
	if got := *d.Attributes["driverVersion"].VersionValue; got != wire.UnknownVersion {
		t.Errorf("driverVersion %q", got)
	}
	if got := *d.Attributes["driverVersionRaw"].StringValue; got != "580.beta.1" {
		t.Errorf("driverVersionRaw %q", got)
	}
	if got := *d.Attributes["productName"].StringValue; got != strings.Repeat("ü", 32) {
		t.Errorf("productName %q, want 32 whole letters", got)
	}
	if memory := d.Capacity["memory"]; !memory.Value.IsZero() {
		t.Errorf("memory %v was published", memory)
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0].Message, "driverVersion") || !strings.Contains(warnings[1].Message, "productName") {
		t.Errorf("warnings %+v, want one for driverVersion and one for productName, each once", warnings)
	}
}

// TestBuild_UnknownValues_OnlyNeededOnesPublished has a GPU of which NVML reports little, and one known by its address
// only, which a claim has. They have the attributes that every device has, because a selector may read those without has.
func TestBuild_UnknownValues_OnlyNeededOnesPublished(t *testing.T) {
	s := gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:10:00.0", UUID: "GPU-1", ProductName: "x"}}}
	p, _ := Build(s, nil, Options{})
	needed := []string{
		"resource.kubernetes.io/pciBusID", "architecture", "cudaComputeCapability", "cudaDriverVersion", "driverVersion", "driverVersionRaw", "index",
		"isolation", "migCapable", "mpsCapable", "productName", "type", "uuid",
	}
	unknown := func(d resourceapi.Device, names ...string) {
		t.Helper()
		if diff := cmp.Diff(needed, toStrings(sortedKeys(d.Attributes))); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		for _, name := range names {
			a := d.Attributes[resourceapi.QualifiedName(name)]
			if ptr.Deref(a.StringValue, "") != "" || ptr.Deref(a.VersionValue, "0.0.0") != "0.0.0" || ptr.Deref(a.IntValue, -1) != -1 || ptr.Deref(a.BoolValue, false) {
				t.Errorf("%s is unknown and published as %v", name, a)
			}
		}
		if memory := d.Capacity["memory"]; len(d.Capacity) != 1 || !memory.Value.IsZero() {
			t.Errorf("capacity %v, want a memory of 0", d.Capacity)
		}
	}
	unknown(p.Slices[0].Devices[0], "architecture", "cudaComputeCapability", "driverVersion", "driverVersionRaw")
	p, _ = Build(gpu.Snapshot{}, nil, with(Options{}, heldWhole(gpu.GPU{PCIAddress: "0000:10:00.0"})))
	unknown(p.Slices[0].Devices[0], "productName", "uuid", "index", "migCapable", "cudaDriverVersion")
}

func TestCatalogue_PublishedDevices_MatchEntries(t *testing.T) {
	catalogued, seenOrder := map[string]Entry{}, map[int]bool{}
	for _, e := range Catalogue() {
		if _, ok := catalogued[e.Name]; ok {
			t.Errorf("%s is in the catalogue twice", e.Name)
		}
		if e.Meaning == "" || e.Source == "" || len(e.Devices) == 0 {
			t.Errorf("%s is not described", e.Name)
		}
		if e.LeftOut != 0 && (len(e.Always) > 0 || seenOrder[e.LeftOut]) {
			t.Errorf("%s is left out as number %d, and another one too, or devices always have it", e.Name, e.LeftOut)
		}
		seenOrder[e.LeftOut] = true
		catalogued[e.Name] = e
	}
	s := node(1)
	s.GPUs[0].MIG = layouttest.H100()
	s.GPUs = append(s.GPUs, s.GPUs[0])
	s.GPUs[1].PCIAddress = "0000:f0:00.0"
	for i := range s.GPUs {
		s.GPUs[i].Class, s.GPUs[i].MemoryLimits = "0x030200", true
		s.GPUs[i].Links = []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}
		s.GPUs[i].Fabric = gpu.Fabric{State: gpu.FabricReady, ClusterUUID: "a1b2", CliqueID: 7}
	}
	s.Machine = "DGXH100"
	// Without these, there is room for what is left out of the others first.
	spare := s.GPUs[0]
	spare.PCIAddress, spare.Fabric, spare.MemoryLimits, spare.NUMANode, spare.Class = "0000:f8:00.0", gpu.Fabric{}, false, nil, ""
	s.GPUs = append(s.GPUs, spare)
	o := full
	o.Sharing = sharingtest.Source{OfferOf: func(g gpu.GPU, profile string, _ v1beta1.Strategy) (sharing.Offer, bool) {
		return sharing.OfferOf(sharing.Policy{Replicas: 2, Renamed: true}, g, profile, true)
	}, SharesOf: func(g gpu.GPU, _ string) sharing.Placements {
		if g.PCIAddress == "0000:f0:00.0" {
			return sharing.LaterPlacements
		}
		return sharing.AllPlacements
	}}
	p, _ := Build(s, nil, o)
	seen := map[string]bool{}
	for _, d := range devicesOf(p) {
		for name, a := range d.Attributes {
			seen[string(name)] = true
			typ := map[bool]string{a.StringValue != nil: "string", a.BoolValue != nil: "bool", a.IntValue != nil: "int", a.VersionValue != nil: "version"}[true]
			if e := catalogued[string(name)]; e.Capacity || e.Type != typ {
				t.Errorf("attribute %s of type %s is catalogued as %+v", name, typ, e)
			}
		}
		for name := range d.Capacity {
			seen[string(name)] = true
			if e := catalogued[string(name)]; !e.Capacity || e.Type != "quantity" {
				t.Errorf("capacity %s is catalogued as %+v", name, e)
			}
		}
	}
	for name, e := range catalogued {
		for _, d := range devicesOf(p) {
			kind := gpu.Kind(*d.Attributes["type"].StringValue)
			_, there := d.Attributes[resourceapi.QualifiedName(name)]
			if !e.Capacity && there && !slices.Contains(e.Devices, kind) {
				t.Errorf("%s is published of %s, and not catalogued for %s", name, d.Name, kind)
			}
		}
		if !seen[name] {
			t.Errorf("%s is catalogued and not published of a GPU that has everything", name)
		}
	}
}

func devicesOf(p Pool) []resourceapi.Device {
	var out []resourceapi.Device
	for _, s := range p.Slices {
		out = append(out, s.Devices...)
	}
	return out
}
