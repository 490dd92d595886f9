// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclaim "k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

const (
	// CordonTaint is the key of the taint that takes a GPU out of use.
	CordonTaint = "gpu.nvidia.com/cordoned"
	// cordonLabel is on each rule of a cordon. Its value is the name of the GPU.
	cordonLabel = "gpu.nvidia.com/cordoned-gpu"
	// cordonNode is the annotation with the GPU's node, whose name can be too long for a label.
	cordonNode = "gpu.nvidia.com/cordoned-node"
)

// CordonRules returns a rule for each device that needs the GPU: the whole, all its partitions and its NVLink groups.
// Monitor devices stay in use. A rule selects one device because the API has no wider selector within a pool. Two
// GPUs of a group have a rule each, so that either can be taken back alone.
func (g GPU) CordonRules(driver string, effect resourceapi.DeviceTaintEffect) []resourceapi.DeviceTaintRule {
	var out []resourceapi.DeviceTaintRule
	for _, d := range g.Devices {
		if parsed, err := gpu.ParseName(d.Name); err != nil || parsed.Kind == gpu.KindMonitor {
			continue
		}
		sum := sha256.Sum256([]byte(strings.Join([]string{driver, g.Node, g.Name, d.Pool, d.Name}, "\n")))
		out = append(out, resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("cordon-%s-%x", g.Name, sum[:5]), Labels: map[string]string{cordonLabel: g.Name}, Annotations: map[string]string{cordonNode: g.Node},
			},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To(d.Pool), Device: ptr.To(d.Name)},
				Taint:          resourceapi.DeviceTaint{Key: CordonTaint, Effect: effect},
			},
		})
	}
	return out
}

// Cordons reports whether a rule belongs to the cordon of the GPU.
func (g GPU) Cordons(r resourceapi.DeviceTaintRule) bool {
	return r.Labels[cordonLabel] == g.Name && r.Annotations[cordonNode] == g.Node
}

// Find returns the GPUs of a device: one for a GPU, a partition or a monitor device, the members for an NVLink group.
// device is NODE/DEVICE, or DEVICE if only one node has GPUs.
func Find(nodes []Node, device string) ([]GPU, error) {
	node, name, ok := strings.Cut(device, "/")
	if !ok && len(nodes) == 1 {
		node, name = nodes[0].Name, device
	} else if !ok {
		return nil, fmt.Errorf("device %q has no node: write NODE/DEVICE, such as n1/gpu-0000-1b-00-0", device)
	}
	if _, err := gpu.ParseName(name); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name != node {
			continue
		}
		var out []GPU
		for _, g := range n.GPUs {
			if slices.ContainsFunc(g.Devices, func(d PublishedDevice) bool { return d.Name == name }) || g.Name == name && len(g.Devices) > 0 {
				out = append(out, g)
			}
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("node %s publishes no device %s", node, name)
		}
		return out, nil
	}
	return nil, fmt.Errorf("node %q publishes no devices", node)
}

// Eviction is a pod that loses a device. If Pod is podgroup/NAME, the pods of a PodGroup lose it.
type Eviction struct {
	Namespace, Pod string
	Claim, Device  string
}

// Evictions returns the pods that the rules evict if their effect is NoExecute: those with claims for one of the devices
// that do not tolerate the taint for ever.
func Evictions(o Objects, rules []resourceapi.DeviceTaintRule) []Eviction {
	var out []Eviction
	for _, r := range results(o.Driver, o.Claims) {
		if !slices.ContainsFunc(rules, func(rule resourceapi.DeviceTaintRule) bool {
			s := rule.Spec.DeviceSelector
			evicts := resourceapi.DeviceTaint{Key: rule.Spec.Taint.Key, Value: rule.Spec.Taint.Value, Effect: resourceapi.DeviceTaintEffectNoExecute}
			return *s.Pool == r.Pool && *s.Device == r.Device && !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
				return t.TolerationSeconds == nil && resourceclaim.ToleratesTaint(t, evicts)
			})
		}) {
			continue
		}
		for _, pod := range r.pods {
			if e := (Eviction{r.claim.Namespace, pod, r.claim.Name, r.Device}); !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}
