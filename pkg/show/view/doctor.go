// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// Level is the weight of a finding.
type Level string

// The levels.
const (
	Info Level = "ok"
	// Note findings name things that people set and that keep devices from claims, such as cordons.
	Note Level = "note"
	// Unchecked findings say what was not looked at, and why.
	Unchecked Level = "not checked"
	Warning   Level = "warning"
	Problem   Level = "problem"
)

// Weight orders levels by the need to act: 0 for Info and Note, 2 for Problem.
func (l Level) Weight() int {
	switch l {
	case Info, Note:
		return 0
	case Problem:
		return 2
	}
	return 1 // All can be well only if all was looked at.
}

// Finding is the result of one check.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"`
	Message string `json:"message"`
}

// Diagnosis has the objects for Findings. Findings say which checks need those that were not read.
type Diagnosis struct {
	Objects
	Classes   []resourceapi.DeviceClass
	CoreNodes []corev1.Node
	// DaemonSets and Deployments make the driver's pods. Refusals are the Events about pods that the API server refused
	// to a DaemonSet.
	DaemonSets  []appsv1.DaemonSet
	Deployments []appsv1.Deployment
	Refusals    []corev1.Event
	// Leases has the Lease of kube-scheduler and that of kube-controller-manager, as far as they exist.
	Leases []coordinationv1.Lease
	// Webhooks are the cluster's validating webhooks for the driver's parameters, budgets and classes.
	Webhooks []admissionv1.ValidatingWebhook
	// Quotas and Budgets limit namespaces, of those that the user may see.
	Quotas  []corev1.ResourceQuota
	Budgets []v1alpha1.GPUBudget
	// GPUClusters are the names of the GPU operator's objects of this kind. Their read fails only if the cluster serves
	// the kind.
	GPUClusters []string
	// AdminNamespaces are the names of the namespaces with the label for admin access.
	AdminNamespaces []string
	// RuleVersion is the API version of DeviceTaintRules, empty without.
	RuleVersion string
	// ServerVersion is the API server's version, such as v1.36.1. ServerVersionError says why it could not be read.
	ServerVersion      string
	ServerVersionError error
	// Plugins are the metrics of the plugins by node, Controllers those of the controller's pods by name. Unmeasured
	// and UnmeasuredControllers say why some are missing, by the same keys.
	Plugins, Controllers              map[string]Samples
	Unmeasured, UnmeasuredControllers map[string]string
	Now                               time.Time
}

// The labels of the driver's pods, by the chart.
const (
	componentLabel = "app.kubernetes.io/component"
	versionLabel   = "app.kubernetes.io/version"
	nameLabel      = "app.kubernetes.io/name"
	pluginPods     = "kubelet-plugin"
	controllerPods = "controller"
)

// chartName is the name of the driver's chart, and the value of the name label of its objects, if it is not overridden.
const chartName = "gpu-dra-driver"

// PluginSelector selects the pods of the driver's plugins by label.
const PluginSelector = componentLabel + "=" + pluginPods

// Findings checks the cluster, or only the named nodes, as far as the API shows it.
func Findings(d Diagnosis, only []string) []Finding {
	var out findings
	nodes := Nodes(d.Objects)
	core := map[string]corev1.Node{}
	for _, n := range d.CoreNodes {
		core[n.Name] = n
	}
	wanted := func(node string) bool { return len(only) == 0 || slices.Contains(only, node) }
	if len(only) == 0 {
		d.cluster(&out)
		d.operator(&out)
		d.controlPlane(&out)
		d.quotas(&out)
		for _, name := range d.AdminNamespaces {
			out.add(Note, "namespace "+name, "it has the label %s: its claims can use every GPU beside the owner. "+
				"The chart value policies.adminAccessNamespaces lists the namespaces that may have it",
				resourceapi.DRAAdminNamespaceLabelKey)
		}
	}
	d.unseen(&out)
	plugins := byNode(running(d.Pods, pluginPods))
	exporters := byNode(slices.DeleteFunc(slices.Clone(d.Pods), func(p corev1.Pod) bool {
		return waiting.Ended(&p) || !isExporter(p)
	}))
	others := d.otherPools()
	byName := map[string]Node{}
	for node := range plugins {
		byName[node] = Node{} // It publishes nothing, unless it is among the nodes.
	}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	for _, name := range only {
		_, exists := core[name]
		if _, found := byName[name]; found {
			continue
		} else if d.Complete(read.Nodes) && !exists {
			out.add(Problem, name, "the cluster has no node of this name")
		} else if d.Complete(read.Pods) && !d.Failed(read.ResourceSlices) {
			out.add(Warning, name, "no plugin runs here, and no GPU is published. If the node has one, see the "+
				"DaemonSet's node selector and tolerations")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if !wanted(name) {
			continue
		}
		if d.Complete(read.Pods) {
			d.plugin(&out, byName[name], name, plugins[name])
			if n := len(exporters[name]); n > 1 {
				out.add(Warning, name, "%d pods of dcgm-exporter run here: %s. Each counts the GPUs, so sums are too "+
					"large. Keep one",
					n, podNames(exporters[name]))
			}
		}
		d.software(&out, name, byName[name].published(), core)
		d.metrics(&out, name)
		d.advice(&out, byName[name], name)
		d.holders(&out, byName[name], name)
		d.otherDriver(&out, name, others[name], core)
		d.node(&out, byName[name], len(others[name]) > 0, core)
	}
	if len(only) == 0 {
		d.rules(&out)
		d.waiting(&out)
	}
	d.unclaimed(&out, wanted, core)
	d.terminating(&out, wanted)
	if d.Complete(read.ResourceClaims) {
		users, ended := d.users()
		for _, c := range Claims(d.Objects, nil) {
			if !wanted(c.Node) {
				continue
			}
			// The scheduler allocates nothing of an incomplete pool.
			if len(c.Unpublished) > 0 && !d.Failed(read.ResourceSlices) && !byName[c.Node].Incomplete {
				effect := ""
				if byName[c.Node].published() > 0 {
					effect = "Another claim can get the same GPU if other devices of it are in slices. "
				}
				out.add(Problem, c.String(), "the claim has devices that no slice publishes: %s. %sSee the node's "+
					"plugin", strings.Join(c.Unpublished, ", "), effect)
			}
			if p := ended[c.ClaimRef]; p != "" && slices.ContainsFunc(c.Pods, func(of string) bool { return of != p }) {
				out.add(Warning, c.String(), "pod %s has ended and names the claim, which others use: "+
					"kube-controller-manager can write its status many times a second "+
					"(kubernetes/kubernetes#141274). To end that: kubectl -n %s delete pod %[1]s", p, c.Namespace)
			}
			if c.State != unreserved || d.Now.Sub(c.Created.Time) <= unreservedAfter {
				continue
			}
			devices := strings.Join(c.Devices, ", ")
			switch user := users[c.ClaimRef]; {
			case user != "":
				out.add(Note, c.String(), "the claim has devices (%s), and the waiting pod %s needs them: kubectl gpu "+
					"why %[2]s -n %s", devices, user, c.Namespace)
			case !d.Complete(read.Pods):
				out.add(Warning, c.String(), "the claim has devices, but is reserved for no pod: %s. Whether a pod "+
					"waits for it was not read", devices)
			default:
				out.add(Warning, c.String(), "the claim has devices, but no pod uses them: %s. Delete the claim if "+
					"nothing needs it", devices)
			}
		}
	}
	return out
}

// rules names the DeviceTaintRules against devices of the driver.
func (d Diagnosis) rules(out *findings) {
	for _, r := range d.Rules {
		s, t := r.Spec.DeviceSelector, r.Spec.Taint
		if s != nil && ptr.Deref(s.Driver, d.Driver) == d.Driver && t.Effect != resourceapi.DeviceTaintEffectNone {
			out.add(Note, "DeviceTaintRule "+r.Name,
				"it taints devices with %s: claims without a toleration do not get them. To end that: %s",
				ask.TaintText(resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}), deleteRule+r.Name)
		}
	}
}

// users returns a pod that waits for each claim, and one that ended on a node and names it, by the claim.
func (d Diagnosis) users() (waits, ended map[ClaimRef]string) {
	waits, ended = map[ClaimRef]string{}, map[ClaimRef]string{}
	claims := waiting.Index(pointers(d.Claims))
	for i := range d.Pods {
		p, of := &d.Pods[i], waits
		if p.Spec.NodeName != "" {
			of = ended
		}
		if (p.Spec.NodeName != "") == waiting.Ended(p) {
			for _, c := range waiting.Made(p, claims) {
				of[ClaimRef{c.Namespace, c.Name}] = p.Name
			}
		}
	}
	return waits, ended
}

// stuckAfter is the age above which the end of a pod is reported.
const stuckAfter = 5 * time.Minute

// terminating reports pods that do not end, and keep their devices.
func (d Diagnosis) terminating(out *findings, wanted func(string) bool) {
	holds := map[ClaimRef]bool{}
	for _, p := range Pods(d.Objects) {
		holds[ClaimRef{p.Namespace, p.Name}] = true
	}
	for i := range d.Pods {
		p := &d.Pods[i]
		if !holds[ClaimRef{p.Namespace, p.Name}] || !wanted(p.Spec.NodeName) {
			continue
		}
		if why, since := d.overdue(p); since > stuckAfter {
			out.add(Warning, "pod "+p.Namespace+"/"+p.Name, "it has been terminating for %s and keeps its GPUs: %s",
				duration.HumanDuration(since), why)
		}
	}
}

func (d Diagnosis) overdue(p *corev1.Pod) (why string, since time.Duration) {
	var node *corev1.Node
	for i, n := range d.CoreNodes {
		if n.Name == p.Spec.NodeName {
			node = &d.CoreNodes[i]
		}
	}
	return waiting.Overdue(p, node, d.Complete(read.Nodes), d.Now)
}

// unclaimed reports the pods on nodes that have no devices for their claims and extended resources.
func (d Diagnosis) unclaimed(out *findings, wanted func(string) bool, core map[string]corev1.Node) {
	if !d.Complete(read.Nodes) || !d.Complete(read.DeviceClasses) {
		return // Other findings say so.
	}
	classes := waiting.NewClasses(d.Driver, pointers(d.Classes))
	claims, ours := waiting.Index(pointers(d.Claims)), map[string]bool{}
	for _, c := range Claims(d.Objects, d.Classes) {
		ours[c.String()] = true
	}
	for i := range d.Pods {
		pod := &d.Pods[i]
		node, exists := core[pod.Spec.NodeName]
		if !exists || !wanted(node.Name) {
			continue // Kubernetes deletes the pods of a node that is gone.
		}
		names := slices.DeleteFunc(waiting.Unallocated(pod, claims), func(name string) bool {
			return !ours[pod.Namespace+"/"+name]
		})
		if len(names) > 0 {
			out.add(Problem, "pod "+pod.Namespace+"/"+pod.Name, "it is on its node without devices for claim %s: "+
				"%s. %s", strings.Join(names, ", "), waiting.UnallocatedCause, waiting.LacksRemedy)
		}
		missing, unknown := classes.Lacks(pod, &node)
		if len(missing) > 0 {
			out.add(Problem, "pod "+pod.Namespace+"/"+pod.Name, "it is on its node without %s: %s. %s",
				waiting.Names(missing), waiting.LacksCause, waiting.LacksRemedy)
		}
		if len(unknown) > 0 {
			out.add(Unchecked, "pod "+pod.Namespace+"/"+pod.Name, "a device plugin of its node served %s, and is "+
				"gone. The API does not show whether the pod has a device of it. To be sure, create the pod again",
				waiting.Names(unknown))
		}
	}
}

// waiting counts the claims that have had no devices for a while.
func (d Diagnosis) waiting(out *findings) {
	count, oldest := 0, Claim{}
	for _, c := range Claims(d.Objects, d.Classes) {
		if c.State != pending || d.Now.Sub(c.Created.Time) < waitingAfter {
			continue
		}
		if count++; count == 1 || c.Created.Before(&oldest.Created) {
			oldest = c
		}
	}
	if count > 0 {
		out.add(Note, "claims", "%d wait for devices; the oldest is %s, %s old: kubectl gpu why claim/%s -n %s",
			count, oldest, duration.HumanDuration(d.Now.Sub(oldest.Created.Time)), oldest.Name, oldest.Namespace)
	}
}

// waitingAfter is the age above which a claim without devices is counted: the scheduler takes a moment.
const waitingAfter = time.Minute

// unreservedAfter is the age above which a claim without a pod is reported: a pod takes a moment to be reserved.
const unreservedAfter = 5 * time.Minute

type findings []Finding

func (f *findings) add(level Level, subject, format string, args ...any) {
	*f = append(*f, Finding{level, subject, fmt.Sprintf(format, args...)})
}

// DriverSelector selects the pods of the driver's plugins and of its controller by label.
const DriverSelector = componentLabel + " in (" + pluginPods + "," + controllerPods + ")"

// Impediments says what else keeps a pod from a start on nodes whose devices are free. These are nodes without a
// plugin, and a controller without which the API server can refuse the pod's claims. It says so if the driver's pods
// were not read.
func Impediments(d Diagnosis, nodes []string) (out []string) {
	if !d.Complete(read.Pods) {
		return []string{"whether the driver's plugins and its controller run was not looked at: you may not list " +
			"pods of all namespaces"}
	}
	plugins := byNode(running(d.Pods, pluginPods))
	var without []string
	for _, n := range nodes {
		if len(plugins[n]) == 0 {
			without = append(without, n)
		}
	}
	if len(without) > 0 {
		g := FindingGroup{Subjects: without}
		out = append(out, fmt.Sprintf("no plugin of the driver runs on %s, so a pod does not start there: kubectl "+
			"gpu doctor says more", g.Subject()))
	}
	var found findings
	d.controller(&found)
	for _, f := range found {
		if f.Level == Problem {
			out = append(out, "controller: "+f.Message)
		}
	}
	return out
}

// cluster checks classes, the controller, the API server's features and the plugins' versions.
func (d Diagnosis) cluster(out *findings) {
	plugins := running(d.Pods, pluginPods)
	if len(d.Slices) == 0 && !d.Failed(read.ResourceSlices) {
		text := "Install the driver, or give --driver-name"
		switch controllers := running(d.Pods, controllerPods); {
		case len(plugins) > 0:
			text = fmt.Sprintf("%d plugins exist: see the findings of their nodes", len(plugins))
		case !d.Complete(read.Pods):
			text = "The driver's pods were not read. Install the driver, give --driver-name, or ask an administrator"
		case len(controllers) > 0 && !d.Failed(read.DaemonSets):
			text = "The controller exists, and no plugin does: see the plugin's DaemonSet"
		case len(controllers) > 0:
			text = "The controller exists, and no plugin does. The reason was not looked at: you may not list " +
				"DaemonSets"
		}
		out.add(Problem, "cluster", "no node publishes devices of driver %s. %s", d.Driver, text)
	}
	ours := newClassifier(d.Objects, d.Classes)
	if d.Complete(read.DeviceClasses) && !slices.ContainsFunc(d.Classes, func(c resourceapi.DeviceClass) bool {
		return ours.selects(c.Spec.Selectors)
	}) {
		out.add(Problem, "cluster", "no DeviceClass selects devices of driver %s. The controller makes them: see "+
			"its log", d.Driver)
	}
	counters, shared := false, false
	for _, s := range d.Slices {
		if s.Shape != nil {
			counters = counters || len(s.Shape.Spec.SharedCounters) > 0
			shared = shared || slices.ContainsFunc(s.Shape.Spec.Devices, func(d resourceapi.Device) bool {
				_, later := resourceslices.Shareable(d)
				return later || d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
			})
		}
	}
	features := fmt.Sprintf("slices have shared counters: %s, shared devices: %s; DeviceTaintRules: %s",
		YesNo(counters), YesNo(shared), cmp.Or(d.RuleVersion, "no"))
	switch {
	case d.Failed(read.ResourceSlices): // The absence of features would be a guess.
	case len(d.Slices) == 0:
		out.add(Unchecked, "cluster", "shared counters and shared devices are visible only in slices, and there "+
			"are none")
	case !shared:
		out.add(Warning, "cluster", "%s. Claims cannot share a GPU: the API server lacks DRAConsumableCapacity, "+
			"or the chart's values publish no share (sharing, publish)", features)
	default:
		out.add(Info, "cluster", "%s", features)
	}
	d.scheduler(out, counters, shared)
	if !d.Complete(read.Pods) {
		return
	}
	d.controller(out)
	d.makers(out)
	versions := sets.New[string]()
	for _, p := range plugins {
		versions.Insert(imageVersion(p))
	}
	if len(versions) > 1 {
		out.add(Warning, "cluster", "the plugins have %d versions: %s. An upgrade is in progress or stopped",
			len(versions), strings.Join(sets.List(versions), ", "))
	}
}

// schedulerVersionVariable sets the plugin's flag --scheduler-version.
const schedulerVersionVariable = "SCHEDULER_VERSION"

// scheduler reports known faults of the scheduler, whose version is the one in the plugins' settings, or the API
// server's.
func (d Diagnosis) scheduler(out *findings, counters, shared bool) {
	texts := sets.New[string]()
	for _, p := range running(d.Pods, pluginPods) {
		for _, c := range p.Spec.Containers {
			for _, e := range c.Env {
				if e.Name == schedulerVersionVariable && e.Value != "" {
					texts.Insert(e.Value)
				}
			}
		}
	}
	switch {
	case texts.Len() > 0:
	case d.ServerVersionError != nil:
		out.add(Warning, "scheduler", "known faults of the scheduler were not checked: the API server's version "+
			"could not be read: %v. Allow get of /version, or set the chart value schedulerVersion",
			d.ServerVersionError)
	case d.ServerVersion != "":
		texts.Insert(d.ServerVersion)
	}
	for _, text := range sets.List(texts) {
		version, err := schedulerfault.Parse(text)
		if err != nil {
			out.add(Warning, "scheduler", "%v, so the nodes publish no %s. Set the chart value schedulerVersion", err,
				schedulerfault.Features{Counters: true, Shares: true})
			continue
		}
		// The features are on by default in newer versions. There the plugins may have left them out.
		served := schedulerfault.Features{Counters: counters || version.Minor >= 36,
			Shares: shared || version.Minor >= 36}
		for _, f := range schedulerfault.Of(version, served) {
			out.add(Warning, "scheduler", "Kubernetes %s has a known fault: %s. The driver's answer: %s. To end it, %s",
				text, f.Text, f.Consequence(), f.Remedy())
		}
	}
}

// YesNo returns a truth for people.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

const loadDriver = "Load the driver (nvidia-smi must work on the node), or correct the chart value nvidiaDriverRoot"
