// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

// want selects the objects to read.
type want struct {
	claims, classes, nodes, pods, rules, quotas, webhooks, gpuClusters, namespaces bool
	// makers are the objects that make the driver's pods, and controlPlane the Leases of Kubernetes' programs.
	makers, controlPlane bool
	// allDrivers keeps the slices of other drivers too.
	allDrivers bool
	// noSlices leaves the slices out. needSlices makes a missing right to them an error, for commands that change
	// objects or have nothing else to show.
	noSlices, needSlices bool
	// nodeLabels and podLabels select nodes and pods.
	nodeLabels, podLabels string
}

// objects are the objects of the cluster that the user may read. Those that want did not ask for are empty.
type objects struct {
	view.Diagnosis
	// OtherSlices counts the slices of other drivers, by driver.
	OtherSlices map[string]int
	*reader
}

// load reads the objects within the context's time, like a reader of its own.
func (f *factory) load(ctx context.Context, w want) (*objects, error) {
	r, err := f.reader()
	if err != nil {
		return nil, err
	}
	return r.load(ctx, w)
}

// load reads the objects side by side. A missing right is not an error. It prints what it could not see.
func (r *reader) load(ctx context.Context, w want) (*objects, error) {
	o := &objects{OtherSlices: map[string]int{}, reader: r}
	o.Closed = map[string]string{}
	o.Driver, o.Now, o.States = r.driver, r.now(), r.states
	group, ctx := errgroup.WithContext(ctx)
	start := func(wanted bool, load func(context.Context) error) {
		if wanted {
			group.Go(func() error { return load(ctx) })
		}
	}
	list := func(wanted bool, s source, labels string) {
		start(wanted, func(ctx context.Context) error { return r.read(ctx, s, labels, o.put) })
	}
	start(!w.noSlices, func(ctx context.Context) error { return o.loadSlices(ctx, w) })
	start(w.rules, o.loadRules)
	start(w.gpuClusters, o.loadGPUClusters)
	list(w.claims, r.claims(), "")
	list(w.classes, r.classes(), "")
	list(w.pods, r.pods(""), w.podLabels)
	core, custom := r.client.CoreV1(), r.dynamic.Resource(v1alpha1.GroupVersionResource(r.driver))
	nodes := kind{resource: read.Nodes, effect: "their state is not shown"}
	list(w.nodes || w.nodeLabels != "", from(nodes, "", core.Nodes()), w.nodeLabels)
	// A small API server has no quotas and webhooks, and a cluster can lack the CustomResourceDefinition of budgets.
	quotas := kind{resource: read.ResourceQuotas, effect: "quotas are not checked", optional: true}
	list(w.quotas, from(quotas, "", core.ResourceQuotas(metav1.NamespaceAll), core.ResourceQuotas(r.own)), "")
	budgets := kind{resource: read.GPUBudgets, effect: "budgets are not shown", optional: true}
	list(w.quotas, from(budgets, "", custom.Namespace(metav1.NamespaceAll), custom.Namespace(r.own)), "")
	webhooks := kind{resource: read.Webhooks, effect: "the policy of webhooks is not checked", optional: true}
	list(w.webhooks, from(webhooks, "", r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()), "")
	namespaces := kind{resource: read.Namespaces, effect: "namespaces with admin access are not shown", optional: true}
	list(w.namespaces, from(namespaces, "", core.Namespaces()), resourceapi.DRAAdminNamespaceLabelKey+"=true")
	daemons := kind{resource: read.DaemonSets, effect: "DaemonSets without pods are not shown", optional: true}
	list(w.makers, from(daemons, "", r.client.AppsV1().DaemonSets(metav1.NamespaceAll)), view.DriverSelector)
	deployments := kind{resource: read.Deployments, effect: "Deployments without pods are not shown", optional: true}
	list(w.makers, from(deployments, "", r.client.AppsV1().Deployments(metav1.NamespaceAll)), view.DriverSelector)
	refused := kind{resource: read.Events, effect: "the reasons of refused pods are not shown", optional: true}
	const refusals = "reason=FailedCreate,involvedObject.kind=DaemonSet"
	list(w.makers, from(refused, refusals, core.Events(metav1.NamespaceAll)), "")
	start(w.controlPlane, o.loadLeases)
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := r.states[read.Nodes]; err != nil && w.nodeLabels != "" {
		return nil, fmt.Errorf("select nodes by label: %w", err)
	}
	for _, text := range r.Unseen {
		fmt.Fprintln(r.ErrOut, "note: "+text)
	}
	return o, nil
}

// put adds a page. Each field has one writer.
func (o *objects) put(page runtime.Object) error {
	switch p := page.(type) {
	case *resourceapi.ResourceClaimList:
		o.Claims = append(o.Claims, p.Items...)
	case *resourceapi.DeviceClassList:
		o.Classes = append(o.Classes, p.Items...)
	case *corev1.PodList:
		o.Pods = append(o.Pods, p.Items...)
	case *corev1.ResourceQuotaList:
		o.Quotas = append(o.Quotas, p.Items...)
	case *corev1.NamespaceList:
		for _, n := range p.Items {
			o.AdminNamespaces = append(o.AdminNamespaces, n.Name)
		}
	case *corev1.NodeList:
		for _, n := range p.Items {
			n.ManagedFields, n.Status.Images = nil, nil // They are most of a node.
			if why := view.Closed(&n); why != "" {
				o.Closed[n.Name] = why
			}
			o.CoreNodes = append(o.CoreNodes, n)
		}
	case *appsv1.DaemonSetList:
		o.DaemonSets = append(o.DaemonSets, p.Items...)
	case *appsv1.DeploymentList:
		o.Deployments = append(o.Deployments, p.Items...)
	case *corev1.EventList:
		o.Refusals = append(o.Refusals, p.Items...)
	case *admissionv1.ValidatingWebhookConfigurationList:
		for _, c := range p.Items {
			for _, w := range c.Webhooks { // Those of the driver are named after it.
				if strings.HasSuffix(w.Name, "."+o.driver) {
					o.Webhooks = append(o.Webhooks, w)
				}
			}
		}
	case *unstructured.UnstructuredList:
		for _, item := range p.Items {
			var b v1alpha1.GPUBudget
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &b); err != nil {
				return fmt.Errorf("GPU budget %s/%s: %w", item.GetNamespace(), item.GetName(), err)
			}
			o.Budgets = append(o.Budgets, b)
		}
	}
	return nil
}

// pageSize bounds the memory for objects that are trimmed at once, and the objects of a file of an archive.
const pageSize = 500

func (o *objects) loadSlices(ctx context.Context, w want) (err error) {
	var shapes pool.Shapes
	for p, failed := range read.Slices(ctx, o.client, metav1.ListOptions{Limit: pageSize}, shapes.Pack) {
		switch err = failed; {
		case err != nil:
		case w.allDrivers || p.Shape.Spec.Driver == o.driver:
			o.Slices = append(o.Slices, p)
		default:
			o.OtherSlices[p.Shape.Spec.Driver]++
		}
	}
	if err != nil && (w.needSlices || !apierrors.IsForbidden(err)) {
		return slicesError(err)
	}
	const effect = "only GPUs that claims have are shown, and not their models, memory and health"
	return o.end(kind{resource: read.ResourceSlices, effect: effect}, ends{err, err})
}

// loadLeases reads the Leases of kube-scheduler and kube-controller-manager. A cluster can hide them.
func (o *objects) loadLeases(ctx context.Context) error {
	k := kind{resource: read.Leases, effect: "whether the scheduler runs is not shown", optional: true}
	var last error
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		one, err := o.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			o.Leases = append(o.Leases, *one)
		} else if !apierrors.IsNotFound(err) {
			last = err
		}
	}
	return o.end(k, ends{last, last})
}

// gpuClusters is the kind for which the GPU operator installs NVIDIA's DRA driver.
var gpuClusters = schema.GroupVersionResource{Group: "nvidia.com", Version: "v1alpha1", Resource: "gpuclusters"}

// loadGPUClusters reads the names of the GPU operator's objects. Clusters without the operator grant no right to list
// them, so the API server is first asked for the kind.
func (o *objects) loadGPUClusters(ctx context.Context) error {
	k := kind{resource: read.GPUClusters, effect: "the GPU operator's DRA driver is not looked for", optional: true}
	served, err := o.client.Discovery().ServerResourcesForGroupVersionWithContext(ctx,
		gpuClusters.GroupVersion().String())
	isKind := func(r metav1.APIResource) bool { return r.Name == gpuClusters.Resource }
	if err != nil || !slices.ContainsFunc(served.APIResources, isKind) {
		return o.end(k, ends{err, err})
	}
	return o.read(ctx, from(k, "", o.dynamic.Resource(gpuClusters)), "", func(page runtime.Object) error {
		return meta.EachListItem(page, func(one runtime.Object) error {
			cluster, err := meta.Accessor(one)
			if err == nil {
				o.GPUClusters = append(o.GPUClusters, cluster.GetName())
			}
			return err
		})
	})
}

func slicesError(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("list ResourceSlices: the cluster does not serve resource.k8s.io/v1 (Kubernetes 1.34 or "+
			"later does): %w", err)
	case err != nil:
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	return nil
}

// loadRules reads DeviceTaintRules in the newest version that the server has. A server without them is not an error.
func (o *objects) loadRules(ctx context.Context) error {
	rules, version, err := read.TaintRules(ctx, o.dynamic)
	o.RuleVersion, o.Rules = version, rules
	if err != nil && version != "" { // One of them cannot be decoded.
		o.miss(read.DeviceTaintRules, err, fmt.Sprintf("%v: it is not shown", err))
		return nil
	}
	return o.end(ruleKind, ends{err, err})
}
