// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

// want selects the objects to read.
type want struct {
	claims, classes, nodes, pods, rules, quotas, webhooks, gpuClusters bool
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
	// SeenRules is false if the user may not list DeviceTaintRules.
	SeenRules bool
	// Unseen says in a sentence each what could not be read.
	Unseen []string

	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
}

// clients returns the typed client, by protobuf, and the dynamic one.
func (f *factory) clients() (*kubernetes.Clientset, *dynamic.DynamicClient, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, nil, err
	}
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = "application/vnd.kubernetes.protobuf"
	protobuf.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(protobuf)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	return client, dyn, nil
}

// load reads the objects side by side, within the context's time. A missing right is not an error. It prints what it
// could not see.
func (f *factory) load(ctx context.Context, w want) (*objects, error) {
	client, dyn, err := f.clients()
	if err != nil {
		return nil, err
	}
	namespace, err := f.namespace()
	if err != nil {
		return nil, err
	}
	l := loader{want: w, namespace: namespace, forbidden: map[string]bool{}, out: &objects{
		Diagnosis:   view.Diagnosis{Objects: view.Objects{Driver: f.driver}, Now: f.now()},
		OtherSlices: map[string]int{}, client: client, dynamic: dyn,
	}}
	group, ctx := errgroup.WithContext(ctx)
	start := func(wanted bool, load func(context.Context) error) {
		if wanted {
			group.Go(func() error { return load(ctx) })
		}
	}
	start(!w.noSlices, l.loadSlices)
	start(w.claims, l.loadClaims)
	start(w.classes, l.loadClasses)
	start(w.rules, l.loadRules)
	start(w.quotas, l.loadQuotas)
	start(w.quotas, l.loadBudgets)
	start(w.pods, l.loadPods)
	start(w.webhooks, l.loadWebhooks)
	start(w.gpuClusters, l.loadGPUClusters)
	start(w.nodes || w.nodeLabels != "", l.loadNodes)
	if err := group.Wait(); err != nil {
		return nil, err
	}
	l.out.SeenClaims, l.out.SeenClasses = !l.forbidden["ResourceClaims"], !l.forbidden["DeviceClasses"]
	l.out.SeenRules = !l.forbidden["DeviceTaintRules"]
	l.out.UnreadSlices, l.out.SeenWebhooks = l.forbidden["ResourceSlices"], !l.forbidden["ValidatingWebhookConfigurations"]
	l.out.UnreadQuotas, l.out.UnreadGPUClusters = l.forbidden["ResourceQuotas"], l.forbidden["GPUClusters"]
	l.out.SeenNodes, l.out.SeenPods = !l.forbidden["Nodes"], !l.forbidden["Pods"]
	for _, text := range l.out.Unseen {
		fmt.Fprintln(f.ErrOut, "note: "+text)
	}
	return l.out, nil
}

type loader struct {
	want
	namespace string
	// mu guards out.Unseen and forbidden. The other fields of out have one writer each.
	mu  sync.Mutex
	out *objects
	// forbidden are the resources that the user may not list at all, or not in all namespaces.
	forbidden map[string]bool
}

// unseen turns a missing right into a note. Other errors say which objects could not be read.
func (l *loader) unseen(err error, what, effect string) error {
	if err == nil {
		return nil
	}
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("list %s: %w", what, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	resource, _, _ := strings.Cut(what, " ")
	l.forbidden[resource] = true
	l.out.Unseen = append(l.out.Unseen, fmt.Sprintf("you may not list %s: %s", what, effect))
	return nil
}

// pageSize bounds the memory for objects that are trimmed at once, and the objects of a file of an archive.
const pageSize = 500

func (l *loader) loadSlices(ctx context.Context) error {
	var shapes pool.Shapes
	var err error
	for p, failed := range read.Slices(ctx, l.out.client, metav1.ListOptions{Limit: pageSize}, shapes.Pack) {
		switch err = failed; {
		case err != nil:
		case l.allDrivers || p.Shape.Spec.Driver == l.out.Driver:
			l.out.Slices = append(l.out.Slices, p)
		default:
			l.out.OtherSlices[p.Shape.Spec.Driver]++
		}
	}
	if apierrors.IsForbidden(err) && !l.needSlices {
		return l.unseen(err, "ResourceSlices", "only GPUs that claims have are shown, and not their models, memory and health")
	}
	return slicesError(err)
}

// loadWebhooks reads the webhooks of the driver, which are named after it.
func (l *loader) loadWebhooks(ctx context.Context) error {
	list, err := l.out.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // A small API server has none.
	}
	if err != nil {
		return l.unseen(err, "ValidatingWebhookConfigurations", "the policy of webhooks is not checked")
	}
	for _, c := range list.Items {
		for _, w := range c.Webhooks {
			if strings.HasSuffix(w.Name, "."+l.out.Driver) {
				l.out.Webhooks = append(l.out.Webhooks, w)
			}
		}
	}
	return nil
}

// gpuClusters is the kind for which the GPU operator installs NVIDIA's DRA driver.
var gpuClusters = schema.GroupVersionResource{Group: "nvidia.com", Version: "v1alpha1", Resource: "gpuclusters"}

// loadGPUClusters reads the names of the GPU operator's objects. Clusters without the operator grant no right to list
// them, so the API server is first asked for the kind.
func (l *loader) loadGPUClusters(ctx context.Context) error {
	served, err := l.out.client.Discovery().ServerResourcesForGroupVersionWithContext(ctx, gpuClusters.GroupVersion().String())
	if apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == gpuClusters.Resource }) {
		return nil
	}
	if err != nil {
		return l.unseen(err, "GPUClusters", "the GPU operator's DRA driver is not looked for")
	}
	list, err := l.out.dynamic.Resource(gpuClusters).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return l.unseen(err, "GPUClusters", "the GPU operator's DRA driver is not looked for")
	}
	for _, item := range list.Items {
		l.out.GPUClusters = append(l.out.GPUClusters, item.GetName())
	}
	return nil
}

func slicesError(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("list ResourceSlices: the cluster does not serve resource.k8s.io/v1 (Kubernetes 1.34 or later does): %w", err)
	case err != nil:
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	return nil
}

// namespaced reads the objects of all namespaces, or of the user's namespace if that is all the user may read. effect
// says what is missing without any, others what is missing without those of other namespaces.
func (l *loader) namespaced(what, effect, others string, read func(namespace string) error) error {
	err := read("")
	if !apierrors.IsForbidden(err) {
		return l.unseen(err, what, "")
	}
	if own := read(l.namespace); own != nil {
		return l.unseen(own, what, effect)
	}
	return l.unseen(err, what+" of all namespaces", "only those of namespace "+l.namespace+" are shown"+others)
}

func (l *loader) loadClaims(ctx context.Context) error {
	const effect, others = "holders are not shown, and devices look free that are not", ", and devices of others look free"
	return l.namespaced("ResourceClaims", effect, others, func(namespace string) error {
		l.out.Claims = nil
		list := l.out.client.ResourceV1().ResourceClaims(namespace).List
		for page, err := range read.Pages(ctx, metav1.ListOptions{Limit: pageSize}, list) {
			if err != nil {
				return err
			}
			l.out.Claims = append(l.out.Claims, page.Items...)
		}
		return nil
	})
}

func (l *loader) loadClasses(ctx context.Context) error {
	list, err := l.out.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return l.unseen(err, "DeviceClasses", "classes are not shown")
	}
	l.out.Classes = list.Items
	return nil
}

func (l *loader) loadNodes(ctx context.Context) error {
	o := metav1.ListOptions{LabelSelector: l.nodeLabels, Limit: pageSize}
	for page, err := range read.Pages(ctx, o, l.out.client.CoreV1().Nodes().List) {
		switch {
		case apierrors.IsForbidden(err) && l.nodeLabels != "":
			return fmt.Errorf("select nodes by label: %w", err)
		case err != nil:
			return l.unseen(err, "Nodes", "their state is not shown")
		}
		for _, n := range page.Items {
			n.ManagedFields, n.Status.Images = nil, nil // They are most of a node.
			l.out.CoreNodes = append(l.out.CoreNodes, n)
		}
	}
	return nil
}

func (l *loader) loadPods(ctx context.Context) error {
	return l.namespaced("Pods", "their state is not shown", "", func(namespace string) error {
		l.out.Pods = nil
		o := metav1.ListOptions{LabelSelector: l.podLabels, Limit: pageSize}
		for page, err := range read.Pages(ctx, o, l.out.client.CoreV1().Pods(namespace).List) {
			if err != nil {
				return err
			}
			l.out.Pods = append(l.out.Pods, page.Items...)
		}
		return nil
	})
}

// loadRules reads DeviceTaintRules in the newest version that the server has. A server without them is not an error.
func (l *loader) loadRules(ctx context.Context) error {
	rules, version, err := read.TaintRules(ctx, l.out.dynamic)
	if err != nil && version == "" {
		return l.unseen(err, "DeviceTaintRules", "DeviceTaintRules are not shown")
	}
	l.out.RuleVersion, l.out.Rules = version, rules
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forbidden["DeviceTaintRules"] = true
		l.out.Unseen = append(l.out.Unseen, fmt.Sprintf("%v: it is not shown", err))
	}
	return nil
}

func (l *loader) loadQuotas(ctx context.Context) error {
	return l.namespaced("ResourceQuotas", "quotas are not checked", "", func(namespace string) error {
		l.out.Quotas = nil
		list, err := l.out.client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil // A small API server has none.
		}
		if err == nil {
			l.out.Quotas = list.Items
		}
		return err
	})
}

// loadBudgets reads the GPU budgets. A cluster without their CustomResourceDefinition has none.
func (l *loader) loadBudgets(ctx context.Context) error {
	client := l.out.dynamic.Resource(v1alpha1.GroupVersionResource(l.out.Driver))
	return l.namespaced("GPUBudgets", "budgets are not shown", "", func(namespace string) error {
		list, err := client.Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		l.out.Budgets = nil
		for _, item := range list.Items {
			var b v1alpha1.GPUBudget
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &b); err != nil {
				return fmt.Errorf("GPU budget %s/%s: %w", item.GetNamespace(), item.GetName(), err)
			}
			l.out.Budgets = append(l.out.Budgets, b)
		}
		return nil
	})
}
