// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/version"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// stalePublish is the age above which a plugin's last check of its slices is reported. It checks them every few minutes.
const stalePublish = 15 * time.Minute

// software says which GPUs, NVIDIA driver, runtime and kubelet a node has, and checks that the runtime reads CDI specs.
func (d Diagnosis) software(out *findings, name string, gpus int, core map[string]corev1.Node) {
	parts := []string{fmt.Sprintf("%d GPUs", gpus)}
	if v := d.driverVersion(name); v != "" {
		parts = append(parts, "NVIDIA driver "+v)
	}
	info := core[name].Status.NodeInfo
	runtime, number, _ := strings.Cut(info.ContainerRuntimeVersion, "://")
	if runtime != "" {
		parts = append(parts, runtime+" "+number, "kubelet "+info.KubeletVersion)
	}
	out.add(Info, name, "%s", strings.Join(parts, ", "))
	v, err := version.ParseGeneric(number)
	if runtime != "containerd" || err != nil {
		return // CRI-O has the version of the kubelet, and reads CDI specs since 1.23.
	}
	switch {
	case v.LessThan(version.MustParseGeneric("1.7.0")):
		out.add(Problem, name, "containerd %s cannot read CDI specs, so containers get no GPU. Install containerd 2.0 or later", number)
	case v.LessThan(version.MustParseGeneric("2.0.0")):
		out.add(Warning, name, "containerd %s reads CDI specs only with enable_cdi = true in its configuration. Check it, or install containerd 2.0 or later", number)
	}
}

// driverVersion returns the version of NVIDIA's driver in the slices of a node.
func (d Diagnosis) driverVersion(node string) string {
	for _, s := range d.Slices {
		if s.Node != node || s.Shape == nil {
			continue
		}
		for _, device := range s.Shape.Spec.Devices {
			if v := pool.Text(device, "driverVersion"); v != "" && v != resourceslices.UnknownVersion {
				return v
			}
		}
	}
	return ""
}

// metrics checks what only the plugin's metrics show.
func (d Diagnosis) metrics(out *findings, node string) {
	if reason := d.Unmeasured[node]; reason != "" {
		out.add(Info, node, "records and publishing are not checked: %s", reason)
	}
	samples := d.Plugins[node]
	if n := samples.value("gpu_dra_quarantined_records"); n != nil && *n > 0 {
		out.add(Warning, node, "%.0f records of claims were unreadable and are in quarantine. Their GPUs may be withheld: see the Events of the node and docs/troubleshooting.md", *n)
	}
	if n := samples.value("gpu_dra_stuck_partitions"); n != nil && *n > 0 {
		out.add(Warning, node, "NVML does not destroy %.0f partitions of ended claims, so their places are unavailable. Stop monitoring agents on these GPUs, "+
			"then reset them or reboot the node: see its Events", *n)
	}
	if n := samples.value("gpu_dra_device_plugin_gpus"); n != nil && *n > 0 {
		out.add(Warning, node, "a device plugin serves %.0f GPUs, which this driver does not offer to claims. Remove one of the two from the node", *n)
	}
	at := samples.value("gpu_dra_last_publish_timestamp_seconds")
	if at == nil || !(*at > 0 && *at < 1e11) { // Another instance publishes.
		return
	}
	if age := d.Now.Sub(time.Unix(int64(*at), 0)); age > stalePublish {
		out.add(Warning, node, "the plugin last checked its slices %s ago, so they can be out of date. See its log", duration.HumanDuration(age))
	}
}

// holders reports GPUs whose MIG mode cannot be switched on.
func (d Diagnosis) holders(out *findings, n Node, node string) {
	for _, s := range d.Plugins[node]["gpu_dra_mig_mode_holders"] {
		subject := node
		if at := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == s.Labels["uuid"] }); at >= 0 {
			subject = node + "/" + n.GPUs[at].Name
		}
		out.add(Warning, subject, "%s has the GPU open, so its MIG mode cannot be switched on, and claims cannot get partitions of it. "+
			"Stop it, or switch the mode on before it starts (nvidia-smi -mig 1)", s.Labels["program"])
	}
}

// advice reports the states of GPUs that the plugin's metrics have, and no taint: advice, and GPUs that the plugin cannot
// read or watch.
func (d Diagnosis) advice(out *findings, n Node, node string) {
	for _, s := range d.Plugins[node]["gpu_dra_device_health"] {
		uuid := s.Labels["uuid"]
		subject := node
		if at := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid }); at >= 0 && uuid != "" {
			subject = node + "/" + n.GPUs[at].Name
		}
		switch state, ok := health.Advised(s.Labels["state"]); {
		case ok:
			out.add(Warning, subject, "%s. To recover: %s", state.Cause, state.Remedy)
		case s.Labels["state"] == "unmonitored":
			out.add(Warning, subject, "faults of the GPU cannot be seen: see docs/health.md")
		case s.Labels["state"] == "unreadable":
			out.add(Warning, subject, "the plugin cannot read GPU %s, so new claims cannot get it. See the Events of the node", uuid)
		}
	}
}

// webhook says whether the API server reaches the webhook, by the test of the leading controller.
func (d Diagnosis) webhook() (text string, reachable bool) {
	for _, samples := range d.Controllers {
		if v := samples.value("gpu_dra_webhook_reachable"); v != nil {
			return fmt.Sprintf("the API server reaches the webhook: %s", YesNo(*v == 1)), *v == 1
		}
	}
	return "the webhook is off, or was not tested yet", true
}
