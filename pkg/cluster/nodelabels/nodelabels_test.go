// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

func poolOf(t *testing.T, profile string, change func(*pool.Slice)) pool.Pool {
	t.Helper()
	published, err := slicetest.Node(profile, "n", 0)
	if err != nil {
		t.Fatal(err)
	}
	shapes, all := &pool.Shapes{}, []*pool.Slice{}
	for _, s := range published {
		one := shapes.Trim(s)
		if change != nil {
			change(&one)
		}
		all = append(all, &one)
	}
	return pool.Of(all)
}

func TestOf_Node_LabelsOfFeatureDiscovery(t *testing.T) {
	if diff := cmp.Diff(map[string]string{
		"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
		"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.family": "hopper", "nvidia.com/gpu.compute.major": "9",
		"nvidia.com/gpu.compute.minor": "0", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none",
		"nvidia.com/mps.capable": "false", "nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "mixed",
		"nvidia.com/cuda.driver-version.full": "580.126.09", "nvidia.com/cuda.driver-version.major": "580",
		"nvidia.com/cuda.driver-version.minor": "126", "nvidia.com/cuda.driver-version.revision": "09",
		"nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "126", "nvidia.com/cuda.driver.rev": "09",
		"nvidia.com/cuda.runtime-version.full": "13.0", "nvidia.com/cuda.runtime-version.major": "13",
		"nvidia.com/cuda.runtime-version.minor": "0", "nvidia.com/cuda.runtime.major": "13", "nvidia.com/cuda.runtime.minor": "0",
		"nvidia.com/vgpu.present": "false", "nvidia.com/gpu.mode": "unknown", "nvidia.com/gpu.machine": "unknown", // There is no sysfs.
		"gpu.nvidia.com/nvlink-enabled": "true", "gpu.nvidia.com/nvlink-gpus-per-island": "8",
	}, Of(poolOf(t, "hgx-h100", nil), "gpu.nvidia.com")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for profile, want := range map[string][3]string{
		"l40s-4": {"NVIDIA-L40S", "ada-lovelace", "false"}, "t4-1": {"Tesla-T4", "turing", "false"},
		"hgx-b200": {"NVIDIA-B200", "blackwell", "true"}, "dgx-1-v100": {"Tesla-V100-SXM2-32GB", "volta", "true"}, "a30": {"NVIDIA-A30", "ampere", "false"},
	} {
		got := Of(poolOf(t, profile, nil), "gpu.nvidia.com")
		if have := [3]string{got["nvidia.com/gpu.product"], got["nvidia.com/gpu.family"], got["gpu.nvidia.com/nvlink-enabled"]}; have != want {
			t.Errorf("%s: %v, want %v", profile, have, want)
		}
	}
	if got := Of(pool.Pool{}, "gpu.nvidia.com"); got != nil {
		t.Errorf("a node without GPUs gets %v", got)
	}
}

// TestOf_NoMonitors_HasLabelsOfPartitions has an administrator hold all GPUs in partitions, and monitor devices switched
// off. test/programs compares the labels of nodes that have them with those of feature discovery.
func TestOf_NoMonitors_HasLabelsOfPartitions(t *testing.T) {
	got := Of(poolOf(t, "hgx-h100", func(s *pool.Slice) {
		shape := *s.Shape
		shape.Spec.Devices, shape.Kinds = nil, nil
		for i, k := range s.Shape.Kinds {
			if k.Type == gpu.KindMIG {
				shape.Spec.Devices, shape.Kinds = append(shape.Spec.Devices, s.Shape.Spec.Devices[i]), append(shape.Kinds, k)
			}
		}
		s.Shape = &shape
	}), "gpu.nvidia.com")
	if got["nvidia.com/gpu.product"] != "NVIDIA-H100-80GB-HBM3" || got["nvidia.com/gpu.count"] != "8" || got["nvidia.com/mig.capable"] != "true" || got["nvidia.com/gpu.memory"] != "" {
		t.Errorf("%v", got)
	}
}

func TestOf_SharedGPUs_ReplicasOfDevicePlugin(t *testing.T) {
	got := Of(poolOf(t, "l40s-4", func(s *pool.Slice) {
		for i := range s.Shape.Spec.Devices {
			d := &s.Shape.Spec.Devices[i]
			if c, ok := d.Capacity["memory"]; ok && c.RequestPolicy != nil {
				c.RequestPolicy.Default = resource.NewQuantity(c.Value.Value()/4>>24<<24, resource.BinarySI)
			}
		}
	}), "gpu.nvidia.com")
	if got["nvidia.com/gpu.replicas"] != "4" || got["nvidia.com/gpu.product"] != "NVIDIA-L40S-SHARED" || got["nvidia.com/gpu.sharing-strategy"] != "mps" || got["nvidia.com/mps.capable"] != "true" {
		t.Errorf("%v", got)
	}
}

func TestOf_Fabric_CliqueLabel(t *testing.T) {
	if got := Of(poolOf(t, "gb200-tray", nil), "gpu.nvidia.com")["nvidia.com/gpu.clique"]; got == "" {
		t.Error("no clique")
	}
}

const driver = "gpu.nvidia.com"

// TestPlan_AnnotationOfAnotherDriver_IsNotRead has the annotation of each driver name prove nothing to another one, even if
// it names labels of that one.
func TestPlan_AnnotationOfAnotherDriver_IsNotRead(t *testing.T) {
	for _, names := range [][2]string{{driver, "gpu.example.com"}, {"gpu.example.com", driver}, {"gpu.example.com", "gpu.example.org"}} {
		theirs, ours := names[0], names[1]
		labels := map[string]string{"nvidia.com/gpu.count": "8", ours + "/nvlink-enabled": "false"}
		notes := map[string]string{Written(theirs): `{"` + ours + `/nvlink-enabled":"false","nvidia.com/gpu.count":"8"}`}
		if c := Plan(labels, notes, map[string]string{"nvidia.com/gpu.count": "4"}, ours); !c.None() {
			t.Errorf("%s changes labels of %s: %v %v", ours, theirs, c.Keys(), c.Annotations)
		}
	}
}

func apply(c Change, labels, annotations map[string]string) {
	for values, into := range map[*map[string]*string]map[string]string{&c.Labels: labels, &c.Annotations: annotations} {
		for key, value := range *values {
			if value == nil {
				delete(into, key)
			} else {
				into[key] = *value
			}
		}
	}
}

// TestPlan_NodeWithoutSlices_KeepsPresent guards against the plugin's removal from a node that publishes nothing for a
// while: the plugin could not publish again, nor unprepare claims.
func TestPlan_NodeWithoutSlices_KeepsPresent(t *testing.T) {
	labels, notes := map[string]string{}, map[string]string{}
	want := map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.present": "true"}
	apply(Plan(labels, notes, want, driver), labels, notes)
	apply(Plan(labels, notes, nil, driver), labels, notes)
	if diff := cmp.Diff(map[string]string{"nvidia.com/gpu.present": "true"}, labels); diff != "" {
		t.Error(diff)
	}
	if c := Plan(labels, notes, nil, driver); !c.None() {
		t.Errorf("more is written: %v", c.Keys())
	}
}

func TestPlan_LabelsOfOthers_LeftAlone(t *testing.T) {
	labels, notes := map[string]string{"nvidia.com/gpu.count": "7", "team": "a"}, map[string]string{}
	want := map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.present": "true"}
	apply(Plan(labels, notes, want, driver), labels, notes)
	if diff := cmp.Diff(map[string]string{"nvidia.com/gpu.count": "7", "team": "a", "nvidia.com/gpu.present": "true"}, labels); diff != "" {
		t.Fatal(diff)
	}
	if c := Plan(labels, notes, want, driver); !c.None() {
		t.Errorf("it is as it should be, and %v is written", c.Keys())
	}
	labels["nvidia.com/gpu.present"] = "feature discovery's"
	apply(Plan(labels, notes, want, driver), labels, notes)
	if labels["nvidia.com/gpu.present"] != "feature discovery's" || len(notes) != 0 {
		t.Errorf("what another took over is taken back: %v %v", labels, notes)
	}
	delete(labels, "nvidia.com/gpu.count")
	apply(Plan(labels, notes, want, driver), labels, notes)
	if labels["nvidia.com/gpu.count"] != "8" {
		t.Error("a label that is free is not written")
	}
	apply(Plan(labels, notes, nil, driver), labels, notes)
	if diff := cmp.Diff(map[string]string{"nvidia.com/gpu.present": "feature discovery's", "team": "a"}, labels); diff != "" || len(notes) != 0 {
		t.Errorf("%s%v", diff, notes)
	}
	notes[Written(driver)] = "{broken"
	apply(Plan(labels, notes, want, driver), labels, notes)
	if c := Plan(labels, notes, want, driver); !c.None() || labels["nvidia.com/gpu.count"] != "8" {
		t.Errorf("a broken annotation is not mended: %v %v", labels, notes)
	}
	var patch map[string]map[string]any
	if err := json.Unmarshal(Plan(map[string]string{}, nil, want, driver).Patch("5"), &patch); err != nil || patch["metadata"]["resourceVersion"] != "5" {
		t.Error(patch, err)
	}
}

// TestPlan_TwoWriters_DoNotUndoEachOther has another writer change what it likes: one plan later there is nothing to do, and
// what the other wrote stands.
func TestPlan_TwoWriters_DoNotUndoEachOther(t *testing.T) {
	r := rand.New(rand.NewPCG(seedtest.Base(t), 2))
	labels, notes := map[string]string{}, map[string]string{}
	some := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			if r.IntN(2) == 0 {
				out[fmt.Sprintf("nvidia.com/%d", i)] = fmt.Sprint(r.IntN(3))
			}
		}
		return out
	}
	foreign := map[string]string{}
	for range 2000 {
		for key, value := range some(4) {
			if r.IntN(3) == 0 {
				labels[key] = "foreign-" + value
				foreign[key] = labels[key]
			}
		}
		for key := range some(4) {
			delete(labels, key)
			delete(foreign, key)
		}
		want := some(4)
		apply(Plan(labels, notes, want, driver), labels, notes)
		if c := Plan(labels, notes, want, driver); !c.None() {
			t.Fatalf("after one write there is more to write: %v", c.Keys())
		}
		for key, value := range foreign {
			if labels[key] != value {
				t.Fatalf("%s was %q and another's, it is %q", key, value, labels[key])
			}
		}
		for key := range want {
			if _, ok := labels[key]; !ok {
				t.Fatalf("%s is not there", key)
			}
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(`{"a":"b"}`)
	f.Add(`null`)
	f.Add(`[1]`)
	f.Fuzz(func(t *testing.T, note string) {
		labels, notes := map[string]string{"a": "b"}, map[string]string{Written(driver): note}
		apply(Plan(labels, notes, map[string]string{"c": "d"}, driver), labels, notes)
		if c := Plan(labels, notes, map[string]string{"c": "d"}, driver); !c.None() {
			t.Errorf("%q is not mended", note)
		}
	})
}
