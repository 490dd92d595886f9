// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// stalePublish is the age above which a plugin's last check of its slices is reported. It checks them every few
// minutes.
const stalePublish = 15 * time.Minute

// software says which GPUs, NVIDIA driver, runtime and kubelet a node has, and checks that the runtime reads CDI specs.
func (d Diagnosis) software(out *findings, name string, gpus int, core map[string]corev1.Node) {
	parts := []string{fmt.Sprintf("%d GPUs in slices", gpus)}
	if d.Failed(read.ResourceSlices) {
		parts = nil
	}
	if v := d.driverVersion(name); v != "" {
		parts = append(parts, "NVIDIA driver "+v)
	}
	info := core[name].Status.NodeInfo
	runtime, number, _ := strings.Cut(info.ContainerRuntimeVersion, "://")
	if runtime != "" {
		parts = append(parts, runtime+" "+number, "kubelet "+info.KubeletVersion)
	}
	if len(parts) > 0 {
		out.add(Info, name, "%s", strings.Join(parts, ", "))
	}
	v, err := version.ParseGeneric(number)
	if runtime != "containerd" || err != nil {
		return // CRI-O has the version of the kubelet, and reads CDI specs since 1.23.
	}
	switch {
	case v.LessThan(version.MustParseGeneric("1.7.0")):
		out.add(Problem, name, "containerd %s cannot read CDI specs, so containers get no GPU. Install containerd "+
			"2.0 or later", number)
	case v.LessThan(version.MustParseGeneric("2.0.0")):
		out.add(Warning, name, "containerd %s reads CDI specs only with enable_cdi = true in its configuration. "+
			"Check it, or install containerd 2.0 or later", number)
	}
}

// driverVersion returns the version of NVIDIA's driver in the slices of a node.
func (d Diagnosis) driverVersion(node string) string {
	for _, s := range d.Slices {
		if s.Node != node || s.Shape == nil {
			continue
		}
		for _, device := range s.Shape.Spec.Devices {
			if v := pool.Text(device, "driverVersion"); v != "" && v != wire.UnknownVersion {
				return v
			}
		}
	}
	return ""
}

// metrics checks what only the plugin's metrics show.
func (d Diagnosis) metrics(out *findings, node string) {
	if reason := d.Unmeasured[node]; reason != "" {
		out.add(Unchecked, node, "the NVIDIA driver, records, publishing and advice about GPUs: %s", reason)
	}
	samples := d.Plugins[node]
	if n := samples.value("gpu_dra_quarantined_records"); n != nil && *n > 0 {
		out.add(Warning, node, "%.0f records of claims were unreadable and are in quarantine. Their GPUs may be "+
			"withheld: see the Events of the node and docs/troubleshooting.md", *n)
	}
	if n := samples.value("gpu_dra_stuck_partitions"); n != nil && *n > 0 {
		out.add(Warning, node, "NVML does not destroy %.0f partitions of ended claims, so their places are "+
			"unavailable. Stop monitoring agents on these GPUs, then reset them or reboot the node: see its Events", *n)
	}
	if n := samples.value("gpu_dra_device_plugin_gpus"); n != nil && *n > 0 {
		out.add(Warning, node, "a device plugin serves %.0f GPUs, which this driver does not offer to claims. Remove "+
			"one of the two from the node", *n)
	}
	for _, s := range samples["gpu_dra_refused_devices"] {
		subject, what := node, "slices of the node"
		if device := s.Labels["device"]; device != "" {
			subject, what = node+"/"+device, "the present form of the device"
		}
		out.add(Problem, subject, "the API server refuses %s, so claims see the last accepted form, or none. The "+
			"Event PublishRefused of the node and the plugin's log say why: correct the admission policy or quota, "+
			"or report it", what)
	}
	at := samples.value("gpu_dra_last_publish_timestamp_seconds")
	if at == nil || !(*at > 0 && *at < 1e11) { // Another instance publishes.
		return
	}
	if age := d.Now.Sub(time.Unix(int64(*at), 0)); age > stalePublish {
		out.add(Warning, node, "the plugin last checked its slices %s ago, so they can be out of date. See its log",
			duration.HumanDuration(age))
	}
}

// holders reports GPUs whose MIG mode cannot be switched on.
func (d Diagnosis) holders(out *findings, n Node, node string) {
	for _, s := range d.Plugins[node]["gpu_dra_mig_mode_holders"] {
		subject := node
		if at := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == s.Labels["uuid"] }); at >= 0 {
			subject = node + "/" + n.GPUs[at].Name
		}
		out.add(Warning, subject, "%s has the GPU open, so its MIG mode cannot be switched on, and claims cannot get "+
			"partitions of it. Stop it, or switch the mode on before it starts (nvidia-smi -mig 1)",
			s.Labels["program"])
	}
}

// advice reports states that the plugin's metrics have, and no taint: advice, and GPUs that the plugin cannot read or
// watch. Faulty GPUs without devices are among them, such as a lost GPU that no claim has.
func (d Diagnosis) advice(out *findings, n Node, node string) {
	names := map[string]string{}
	for _, s := range d.Plugins[node]["gpu_dra_gpu_info"] {
		names[s.Labels["uuid"]] = s.Labels["device"]
	}
	for _, s := range d.Plugins[node]["gpu_dra_device_health"] {
		uuid := s.Labels["uuid"]
		subject, address := node, ""
		published := false
		if at := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid }); at >= 0 && uuid != "" {
			subject, address, published = node+"/"+n.GPUs[at].Name, n.GPUs[at].PCIAddress, true
		} else if device, err := gpu.ParseName(names[uuid]); err == nil {
			subject, address = node+"/"+device.Name(), device.PCIAddress
		}
		switch state, ok := health.Advised(s.Labels["state"]); {
		case ok:
			out.add(Warning, subject, "%s. To recover: %s", state.Cause, state.RemedyFor(address))
		case s.Labels["state"] == "unmonitored":
			out.add(Warning, subject, "faults of the GPU cannot be seen: see docs/health.md")
		case s.Labels["state"] == "unreadable":
			out.add(Warning, subject, "the plugin cannot read GPU %s, so new claims cannot get it. See the Events of "+
				"the node", uuid)
		case !published:
			if fault, ok := health.Lookup(s.Labels["state"]); ok {
				absent := ""
				if !d.Failed(read.ResourceSlices) && !n.Incomplete {
					absent = " No slice has GPU " + uuid + ", so new claims cannot get it."
				}
				out.add(Warning, subject, "unhealthy: %s: %s.%s To recover: %s", fault.Name, fault.Cause, absent,
					fault.RemedyFor(address))
			}
		}
	}
}

// unseen says which checks a missing right prevents.
func (d Diagnosis) unseen(out *findings) {
	for _, c := range []struct {
		missing bool
		subject string
		checks  string
	}{
		{d.Failed(read.ResourceSlices), "ResourceSlices",
			"the GPUs of nodes, their health, and claims with devices that no slice has"},
		{!d.Complete(read.ResourceClaims), "ResourceClaims",
			"holders of GPUs, claims without pods, and claims with devices that no slice has"},
		{!d.Complete(read.Pods), "Pods",
			"the controller, its webhook, the plugins, what only their metrics show, and pods that run without the " +
				"GPUs that they ask for"},
		{!d.Complete(read.Nodes), "Nodes",
			"nodes that are not ready or do not exist, container runtimes, cordons, device plugins, and pods that " +
				"run without the GPUs that they ask for"},
		{d.Failed(read.DaemonSets) || d.Failed(read.Deployments), "DaemonSets",
			"why the driver's DaemonSet and Deployment make no pods"},
		{d.Failed(read.Leases), "Leases", "whether kube-scheduler and kube-controller-manager run"},
		{!d.Complete(read.DeviceClasses), "DeviceClasses",
			"classes of the driver, and pods that run without the GPUs that they ask for"},
		{d.Failed(read.ResourceQuotas), "ResourceQuotas", "quotas with classes that hand out GPUs without a limit"},
		{d.Failed(read.GPUClusters), "GPUClusters", "whether the GPU operator deploys NVIDIA's DRA driver"},
		{d.Failed(read.Namespaces), "Namespaces", "which ones have admin access to all GPUs"},
		{!d.Complete(read.Webhooks), "webhooks", "whether claims are refused while the controller is away"},
	} {
		if c.missing {
			out.add(Unchecked, c.subject, "you may not list them in all namespaces, so these were not looked at: %s",
				c.checks)
		}
	}
}

// controller checks the controller's pods. While none is ready, a webhook with the policy Fail refuses objects.
func (d Diagnosis) controller(out *findings) {
	controllers := running(d.Pods, controllerPods)
	alive := slices.DeleteFunc(slices.Clone(controllers), func(p corev1.Pod) bool { return !ready(p) })
	var cause string
	switch {
	case len(controllers) == 0:
		cause = "no pod of the controller exists"
	case len(alive) == 0:
		cause = fmt.Sprintf("none of %d pods is ready (%s)%s", len(controllers), podNames(controllers),
			d.ailments(controllers))
	default:
		level, text := d.webhook()
		out.add(level, "controller", "%d of %d pods are ready; %s", len(alive), len(controllers), text)
		return
	}
	level, effect := Warning, "no webhook reviews claims"
	var refusing []string
	for _, w := range d.Webhooks {
		if w.FailurePolicy == nil || *w.FailurePolicy == admissionv1.Fail {
			refusing = append(refusing, w.Name)
		}
	}
	switch {
	case !d.Complete(read.Webhooks):
		level, effect = Problem, "the API server refuses claims with this driver's parameters, unless the chart "+
			"value webhook.failurePolicy is Ignore"
	case len(refusing) > 0:
		level, effect = Problem, "the API server refuses objects that the webhooks "+strings.Join(refusing,
			", ")+" review, such as claims with this driver's parameters"
	case len(d.Webhooks) > 0:
		effect = "claims are created without a review (failurePolicy Ignore)"
	}
	if len(controllers) > 0 {
		level = Problem
	}
	out.add(level, "controller", "%s: %s. Classes, labels of nodes and Events of waiting pods are no longer written. "+
		"See the controller's Deployment", cause, effect)
}

// webhook says whether the API server reaches the webhook, by the test of the leading controller.
func (d Diagnosis) webhook() (Level, string) {
	for _, samples := range d.Controllers {
		switch v := samples.value("gpu_dra_webhook_reachable"); {
		case v == nil:
		case *v == 1:
			return Info, "the API server reaches the webhook: yes"
		default:
			return Problem, "the API server reaches the webhook: no. Claims with this driver's parameters can be " +
				"refused: see docs/firewalls.md and the controller's log"
		}
	}
	switch {
	case d.Complete(read.Webhooks) && len(d.Webhooks) == 0:
		return Info, "the webhook is off"
	case len(d.UnmeasuredControllers) > 0:
		first := slices.Sorted(maps.Keys(d.UnmeasuredControllers))[0]
		return Unchecked, "whether the API server reaches the webhook was not read: " + d.UnmeasuredControllers[first]
	case d.Complete(read.Webhooks):
		return Unchecked, "whether the API server reaches the webhook was not tested yet"
	}
	return Unchecked, "the webhook is off, or was not tested yet"
}

// plugin checks the pods of a node's plugin.
func (d Diagnosis) plugin(out *findings, n Node, node string, pods []corev1.Pod) {
	alive := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !ready(p) })
	published, held := n.published(), n.held()
	switch {
	case len(pods) == 0 && published > 0:
		out.add(Problem, node, "slices exist, but no plugin runs here: claims can get GPUs that cannot be prepared. "+
			"Delete the node's slices, or start the plugin")
	case len(pods) == 0 && held > 0:
		out.add(Problem, node, "no plugin runs here, and the node has no slices, but claims have %d of its GPUs: "+
			"their pods cannot end. Start the plugin", held)
	case len(pods) > 0 && len(alive) == 0:
		out.add(Problem, node, "the plugin %s is not ready%s", podNames(pods), d.ailments(pods))
	case len(alive) > 0 && d.Failed(read.ResourceSlices):
		out.add(Info, node, "plugin %s", pluginOf(alive[0], d.Now))
	case len(alive) > 0 && published == 0 && held > 0:
		out.add(Problem, node, "the plugin %s runs, but publishes no GPU, and claims have %d of the node. %s",
			podNames(alive), held, d.noGPUs(node, alive[0]))
	case len(alive) > 0 && published == 0:
		out.add(Warning, node, "the plugin %s runs, but publishes no GPU. %s", podNames(alive),
			d.noGPUs(node, alive[0]))
	case len(alive) > 0:
		out.add(Info, node, "plugin %s", pluginOf(alive[0], d.Now))
		if text, weak := d.ailment(alive[0]); weak {
			out.add(Warning, node, "the plugin %s is ready, and %s", podNames(alive[:1]), text)
		}
		if driver := d.Plugins[node].value("gpu_dra_nvidia_driver_loaded"); driver != nil && *driver == 0 {
			out.add(Problem, node, "no NVIDIA driver is loaded: the slices keep only GPUs that claims have, and no "+
				"pod with a GPU starts. %s", loadDriver)
		}
	}
}

// noGPUs says why a plugin publishes no GPU, or where the reason stands.
func (d Diagnosis) noGPUs(node string, plugin corev1.Pod) string {
	switch driver := d.Plugins[node].value("gpu_dra_nvidia_driver_loaded"); {
	case driver == nil:
		return fmt.Sprintf("If the node has one: kubectl -n %s logs %s, and see the node's Events", plugin.Namespace,
			plugin.Name)
	case *driver == 0:
		return "No NVIDIA driver is loaded. If the node has a GPU: " + strings.ToLower(loadDriver[:1]) + loadDriver[1:]
	}
	return fmt.Sprintf("NVIDIA's driver is loaded. If the node has a GPU: kubectl -n %s logs %s, and see the "+
		"node's Events", plugin.Namespace, plugin.Name)
}

// node checks the picture of a node. other means that a finding names another driver's slices.
func (d Diagnosis) node(out *findings, n Node, other bool, core map[string]corev1.Node) {
	if n.Incomplete {
		out.add(Warning, n.Name, "slices of the pool are missing: claims get no device until the plugin has written "+
			"all. This is normal for a moment")
	}
	if n.Unreadable > 0 && !other {
		out.add(Warning, n.Name, "%d devices have names that driver %s does not give: another program writes slices "+
			"with its name", n.Unreadable, d.Driver)
	}
	if c, ok := core[n.Name]; ok {
		if !waiting.Ready(&c) {
			out.add(Problem, n.Name, "the node is not ready")
		}
		if c.Spec.Unschedulable {
			out.add(Note, n.Name, "the node is cordoned: no new pod gets its GPUs. To end that: kubectl uncordon %s",
				n.Name)
		}
		if q, ok := c.Status.Allocatable["nvidia.com/gpu"]; ok && !q.IsZero() {
			out.add(Problem, n.Name, "a device plugin serves %s nvidia.com/gpu too: a GPU can be handed out twice. "+
				"Remove one of the two from the node", q.String())
		}
	} else if d.Complete(read.Nodes) && n.published() > 0 {
		out.add(Problem, n.Name, "slices name a node that does not exist")
	} else if d.Complete(read.Nodes) && n.held() > 0 {
		out.add(Problem, n.Name, "claims have GPUs of a node that does not exist. Delete their pods and the claims")
	}
	cordons, err := wire.ParseCordons(d.Driver, core[n.Name].Annotations)
	if err != nil {
		out.add(Warning, n.Name, "%v", err)
	}
	for _, g := range n.GPUs {
		d.unhealthy(out, n.Name, g)
		if effect := cordons[g.PCIAddress]; effect != "" {
			if free, _ := g.Uncordoned(effect); len(free) > 0 {
				out.add(Warning, n.Name+"/"+g.Name,
					"the GPU is cordoned, but claims can get %d of its devices: the node's plugin has not applied "+
						"the annotation of the node", len(free))
			} else {
				out.add(Note, n.Name+"/"+g.Name, "%s. To end that: kubectl gpu uncordon NODE/GPU", cordonCause)
			}
		}
		if named, all := d.named(g); named > 0 && named < all {
			out.add(Warning, n.Name+"/"+g.Name, "a DeviceTaintRule names the GPU, and rules %d of %d devices with "+
				"it: claims can get the others, and those that the node publishes later. Use kubectl gpu cordon", named,
				all)
		}
	}
}

// unhealthy reports a faulty GPU. It is a problem if a claim has it and cannot be prepared on it.
func (d Diagnosis) unhealthy(out *findings, node string, g GPU) {
	if g.Health == "" {
		return
	}
	state, _ := resourceslices.Describe(g.Health)
	fault := g.fault()
	text, level, holders := fault.Cause, Warning, g.Holders()
	if len(holders) > 0 {
		text += ". Claims that have it: " + strings.Join(holders, ", ")
		if !state.Usable {
			level = Problem
		}
	}
	out.add(level, node+"/"+g.Name, "%s. To recover: %s", text, fault.Text)
}

// named counts the devices that need a GPU and that rules name, if a rule names the whole GPU.
func (d Diagnosis) named(g GPU) (named, all int) {
	whole := false
	for _, device := range g.Devices {
		if p, err := gpu.ParseName(device.Name); err != nil || p.Kind == gpu.KindMonitor {
			continue
		}
		all++
		if slices.ContainsFunc(d.Rules, func(r resourceapi.DeviceTaintRule) bool {
			s := r.Spec.DeviceSelector
			return s != nil && ptr.Deref(s.Device, "") == device.Name &&
				ptr.Deref(s.Pool, device.Pool) == device.Pool &&
				ptr.Deref(s.Driver, d.Driver) == d.Driver && r.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone
		}) {
			named++
			whole = whole || device.Name == g.Name
		}
	}
	if !whole {
		return 0, all
	}
	return named, all
}
