// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

// ofNVIDIA is a slice as NVIDIA's DRA driver (v25.12, cmd/gpu-kubelet-plugin) writes it: its pool has the name of the node.
func ofNVIDIA(node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpu.nvidia.com-x7k2p"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: slicetest.Driver, NodeName: ptr.To(node), Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
		},
	}
}

// about returns the findings whose message has a part.
func about(all []view.Finding, part string) (out []view.Finding) {
	for _, f := range all {
		if strings.Contains(f.Message, part) {
			out = append(out, f)
		}
	}
	return out
}

func labelledNode(name string, labels map[string]string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// TestFindings_SlicesOfAnotherDriver_AreNamed has them beside this driver's, and on a node of their own.
func TestFindings_SlicesOfAnotherDriver_AreNamed(t *testing.T) {
	d := view.Diagnosis{Objects: objects(slices.Concat(published(t, "l40s-4", "n1", 1), []*resourceapi.ResourceSlice{ofNVIDIA("n1"), ofNVIDIA("n2")}))}
	got := about(view.Findings(d, nil), "another driver")
	if len(got) != 2 || got[0].Subject != "n1" || got[1].Subject != "n2" {
		t.Fatalf("%+v", got)
	}
	for _, f := range got {
		if f.Level != view.Problem || !strings.Contains(f.Message, "the pool "+f.Subject) || !strings.Contains(f.Message, "with gpu-0, gpu-1.") {
			t.Errorf("%+v", f)
		}
	}
	if others := about(view.Findings(d, nil), "does not give"); len(others) > 0 {
		t.Errorf("the same is reported twice: %+v", others)
	}
	if others := about(view.Findings(view.Diagnosis{Objects: objects(published(t, "hgx-h100", "n1", 2))}, nil), "another driver"); len(others) > 0 {
		t.Errorf("without another driver: %+v", others)
	}
}

// TestFindings_OperatorDeploysItsDriver_IsReported has the label of the GPU operator 26.7 on nodes, and its objects.
func TestFindings_OperatorDeploysItsDriver_IsReported(t *testing.T) {
	label := func(value string) map[string]string {
		return map[string]string{"nvidia.com/gpu.deploy.dra-driver": value}
	}
	d := view.Diagnosis{
		Objects:     objects(slices.Concat(published(t, "l40s-4", "n1", 1), published(t, "l40s-4", "n2", 1), published(t, "l40s-4", "n3", 1))),
		CoreNodes:   []corev1.Node{labelledNode("n1", label("true")), labelledNode("n2", label("paused-for-driver-upgrade")), labelledNode("n3", label("false")), labelledNode("cpu", nil)},
		GPUClusters: []string{"gpu-cluster"},
	}
	d.States = read.States{read.Nodes: nil}
	got := about(view.Findings(d, nil), "nvidia.com/gpu.deploy.dra-driver=true")
	if len(got) != 2 || got[0].Subject != "cluster" || got[1].Subject != "n1" || got[0].Level != view.Warning || got[1].Level != view.Warning {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(got[0].Message, "GPUCluster gpu-cluster") {
		t.Errorf("%+v", got[0])
	}
	named := d
	named.Driver = "gpu.example.com"
	if got := about(view.Findings(named, nil), "nvidia.com/gpu.deploy.dra-driver"); len(got) > 0 {
		t.Errorf("a driver of another name: %+v", got)
	}
	// The label is for upgrades of the kernel driver then.
	d.GPUClusters = nil
	if got := about(view.Findings(d, nil), "nvidia.com/gpu.deploy.dra-driver"); len(got) > 0 {
		t.Errorf("without a GPUCluster: %+v", got)
	}
}

func TestFindings_GPUClustersUnread_NotChecked(t *testing.T) {
	d := view.Diagnosis{Objects: objects(published(t, "l40s-4", "n1", 1))}
	d.States = read.States{read.GPUClusters: errors.New("forbidden")}
	got := slices.DeleteFunc(view.Findings(d, nil), func(f view.Finding) bool { return f.Subject != "GPUClusters" })
	if len(got) != 1 || got[0].Level != view.Unchecked {
		t.Errorf("%+v", got)
	}
}
