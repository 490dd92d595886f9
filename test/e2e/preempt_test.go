//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/test/e2e/env"
)

// notebook is a Deployment of pods of low priority with a GPU each.
const notebook = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: %[1]s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: notebook, namespace: %[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: notebook}}
  template:
    metadata: {labels: {app: notebook}}
    spec:
      priorityClassName: e2e-low
      terminationGracePeriodSeconds: %[3]d
      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
      containers: [{name: probe, image: %[2]q, imagePullPolicy: Never, args: [look, --hold], resources: {claims: [{name: gpu}]}}]
`

// createPriorities creates the PriorityClasses of the tests.
func createPriorities(ctx context.Context, t *testing.T) {
	t.Helper()
	never, lower := corev1.PreemptNever, corev1.PreemptLowerPriority
	for _, c := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "e2e-low"}, Value: 100, PreemptionPolicy: &lower},
		{ObjectMeta: metav1.ObjectMeta{Name: "e2e-never"}, Value: 500, PreemptionPolicy: &never},
		{ObjectMeta: metav1.ObjectMeta{Name: "e2e-high"}, Value: 1000, PreemptionPolicy: &lower},
	} {
		_, err := cluster.Client.SchedulingV1().PriorityClasses().Create(ctx, &c, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			must(t, cluster.Client.SchedulingV1().PriorityClasses().Delete(context.WithoutCancel(ctx), c.Name, metav1.DeleteOptions{}))
		})
	}
}

func prioritized(class string, change ...func(*corev1.PodSpec)) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.PriorityClassName = class
		for _, f := range change {
			f(spec)
		}
	}
}

// byResource asks for a GPU without a claim.
func byResource(spec *corev1.PodSpec) {
	spec.ResourceClaims, spec.Containers[0].Resources.Claims = nil, nil
	spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
}

// keeper holds so many GPUs with the highest priority of a test.
func keeper(ctx context.Context, t *testing.T, namespace string, count int64) {
	t.Helper()
	r := request("gpu", env.Driver)
	r.Exactly.Count = count
	createRequests(ctx, t, namespace, "keeper", "", r)
	createPod(ctx, t, namespace, "keeper", "keeper", prioritized("e2e-high"))
	waitRunning(ctx, t, namespace, "keeper")
}

// notebooks returns the pods of the Deployment that have GPUs.
func notebooks(ctx context.Context, t *testing.T, namespace string) (out []corev1.Pod) {
	t.Helper()
	list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=notebook"})
	must(t, err)
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			out = append(out, p)
		}
	}
	return out
}

func startNotebooks(ctx context.Context, t *testing.T, namespace string, grace int) {
	t.Helper()
	manifest := filepath.Join(t.TempDir(), "notebook.yaml")
	must(t, os.WriteFile(manifest, fmt.Appendf(nil, notebook, namespace, probeImage(t), grace), 0o600))
	_, err := cluster.Kubectl(ctx, "apply", "-f", manifest)
	must(t, err)
	must(t, cluster.Eventually(ctx, "the Deployment runs", time.Minute, func(ctx context.Context) (bool, string) {
		n := len(notebooks(ctx, t, namespace))
		return n == 2, fmt.Sprint(n)
	}))
}

// messages returns the Events about an object with a reason.
func messages(ctx context.Context, t *testing.T, namespace, reason string) (out []string) {
	t.Helper()
	list, err := cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	must(t, err)
	for _, e := range list.Items {
		out = append(out, e.InvolvedObject.Name+": "+e.Message)
	}
	return out
}

// preemption starts a test with preemption.
func preemption(t *testing.T) context.Context {
	t.Helper()
	ctx := testContext(t, "--set", "preemption.enabled=true")
	t.Cleanup(func() {
		if t.Failed() {
			log, err := cluster.Kubectl(context.WithoutCancel(ctx), "-n", env.Namespace, "logs", "-l", "app.kubernetes.io/component=controller", "--tail=60", "--prefix")
			t.Logf("%v: the controller's log:\n%s", err, log)
		}
	})
	createPriorities(ctx, t)
	return ctx
}

// waitPreempts waits until a pod runs for which another one leaves. If a newcomer got the devices first, it takes a minute more.
func waitPreempts(ctx context.Context, t *testing.T, namespace, name string) corev1.Pod {
	t.Helper()
	return waitRunningFor(ctx, t, namespace, name, 3*time.Minute)
}

// TestPreemption_HigherPriority_EvictsAndRuns fills the node with pods of a Deployment, which creates each evicted pod again.
// A pod with the policy Never waits all the time.
func TestPreemption_HigherPriority_EvictsAndRuns(t *testing.T) {
	ctx := preemption(t)
	namespace := createNamespace(ctx, t, nil)
	keeper(ctx, t, namespace, 6)
	for _, grace := range []int{1, 0} {
		startNotebooks(ctx, t, namespace, grace)
		before := notebooks(ctx, t, namespace)
		never := fmt.Sprintf("never-%d", grace)
		createClaim(ctx, t, namespace, never, "")
		createPod(ctx, t, namespace, never, never, prioritized("e2e-never"))
		waitUnschedulable(ctx, t, namespace, never)

		name := fmt.Sprintf("train-%d", grace)
		createClaim(ctx, t, namespace, name, "")
		began := time.Now()
		train := createPod(ctx, t, namespace, name, name, prioritized("e2e-high"))
		checkPod(ctx, t, waitPreempts(ctx, t, namespace, name))
		t.Logf("with a grace period of %d s, the pod runs %.1f s after its creation", grace, time.Since(began).Seconds())

		if left := notebooks(ctx, t, namespace); len(left) != 1 || left[0].UID != before[0].UID && left[0].UID != before[1].UID {
			t.Errorf("%d pods of the Deployment run", len(left))
		}
		preempted := strings.Join(messages(ctx, t, namespace, "Preempted"), "\n")
		if want := "Preempted by pod " + string(train.UID) + " on node "; !strings.Contains(preempted, want) {
			t.Errorf("the Events lack %q: %s", want, preempted)
		}
		if all := strings.Join(messages(ctx, t, namespace, "Preempting"), "\n"); !strings.Contains(all, name+": 1 pod of lower priority leaves node ") {
			t.Errorf("Events of the pod: %s", all)
		}
		waiting, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, never, metav1.GetOptions{})
		must(t, err)
		if waiting.Spec.NodeName != "" {
			t.Errorf("the pod with the policy Never runs on %s", waiting.Spec.NodeName)
		}
		for _, one := range []string{never, name} {
			must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, one, metav1.DeleteOptions{}))
		}
		_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "deployment", "notebook", "--wait", "--cascade=foreground")
		must(t, err)
	}
}

// TestPreemption_DisruptionBudget_Holds has a budget that allows no eviction, until it is gone.
func TestPreemption_DisruptionBudget_Holds(t *testing.T) {
	ctx := preemption(t)
	namespace := createNamespace(ctx, t, nil)
	keeper(ctx, t, namespace, 6)
	startNotebooks(ctx, t, namespace, 1)
	none := intstr.FromInt32(0)
	_, err := cluster.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "notebook"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "notebook"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, cluster.Eventually(ctx, "the budget counts its pods", time.Minute, func(ctx context.Context) (bool, string) {
		b, err := cluster.Client.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "notebook", metav1.GetOptions{})
		return err == nil && b.Status.ExpectedPods == 2, fmt.Sprint(err)
	}))
	createClaim(ctx, t, namespace, "train", "")
	createPod(ctx, t, namespace, "train", "train", prioritized("e2e-high"))
	must(t, cluster.Eventually(ctx, "the controller searches victims", time.Minute, func(ctx context.Context) (bool, string) {
		log, err := cluster.Kubectl(ctx, "-n", env.Namespace, "logs", "-l", "app.kubernetes.io/component=controller", "--tail=-1")
		return strings.Contains(log, `pod="`+namespace+`/train" answer="no victims"`), fmt.Sprint(err)
	}))
	if left := notebooks(ctx, t, namespace); len(left) != 2 {
		t.Fatalf("%d pods of the Deployment run", len(left))
	}
	why := kubectlGPU(ctx, t, "why", "train", "-n", namespace)
	if want := "its priority is higher than that of " + namespace + "/notebook-"; !strings.Contains(why, want) || !strings.Contains(why, "but this driver does") {
		t.Errorf("the answer lacks %q:\n%s", want, why)
	}
	must(t, cluster.Client.PolicyV1().PodDisruptionBudgets(namespace).Delete(ctx, "notebook", metav1.DeleteOptions{}))
	waitPreempts(ctx, t, namespace, "train")
}

// TestPreemption_ExtendedResource_OnBothSides has pods that ask for nvidia.com/gpu, without a claim of their own.
func TestPreemption_ExtendedResource_OnBothSides(t *testing.T) {
	ctx := preemption(t)
	namespace := createNamespace(ctx, t, nil)
	keeper(ctx, t, namespace, 7)
	createPod(ctx, t, namespace, "notebook", "", prioritized("e2e-low", byResource))
	waitRunning(ctx, t, namespace, "notebook")
	began := time.Now()
	createPod(ctx, t, namespace, "train", "", prioritized("e2e-high", byResource))
	checkPod(ctx, t, waitPreempts(ctx, t, namespace, "train"))
	t.Logf("the pod runs %.1f s after its creation", time.Since(began).Seconds())
	if all := messages(ctx, t, namespace, "Preempted"); len(all) != 1 || !strings.HasPrefix(all[0], "notebook: ") {
		t.Errorf("evicted: %q", all)
	}
}

// TestPreemption_VictimsOfSeveralClaims_PodGetsAllTheirGPUs has a pod for the GPUs of two pods of a Deployment, which creates them
// again at once. The GPUs are reserved until both are free.
func TestPreemption_VictimsOfSeveralClaims_PodGetsAllTheirGPUs(t *testing.T) {
	ctx := preemption(t)
	namespace := createNamespace(ctx, t, nil)
	keeper(ctx, t, namespace, 6)
	for _, grace := range []int{0, 1} {
		startNotebooks(ctx, t, namespace, grace)
		name := fmt.Sprintf("train-%d", grace)
		r := request("gpu", env.Driver)
		r.Exactly.Count = 2
		createRequests(ctx, t, namespace, name, "", r)
		began := time.Now()
		createPod(ctx, t, namespace, name, name, prioritized("e2e-high"))
		checkPod(ctx, t, waitPreempts(ctx, t, namespace, name))
		t.Logf("with a grace period of %d s, the pod runs %.1f s after its creation", grace, time.Since(began).Seconds())
		preempted := messages(ctx, t, namespace, "Preempted")
		if left := notebooks(ctx, t, namespace); len(left) != 0 || len(preempted) != 2*(grace+1) {
			t.Errorf("%d pods of the Deployment run; evicted: %q", len(left), preempted)
		}
		nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, n := range nodes.Items {
			if gpus := wire.ReservationsOf(env.Driver, n.Annotations); len(gpus) > 0 {
				must(t, cluster.Eventually(ctx, "the reservations end", 10*time.Second, func(ctx context.Context) (bool, string) {
					now, err := cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
					return err == nil && len(wire.ReservationsOf(env.Driver, now.Annotations)) == 0, fmt.Sprint(err, now.Annotations)
				}))
			}
		}
		must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
		_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "deployment", "notebook", "--wait", "--cascade=foreground")
		must(t, err)
	}
}

// TestPreemption_PodsThatNeverStart_OnlyTheOneThatCanIsServed has pods of the highest priority that lack other things
// than devices. One is kept away by a running pod, others fit on no node, and a pod leaves in an hour. No pod is evicted
// for them. Another pod of this priority gets the GPU of one victim.
func TestPreemption_PodsThatNeverStart_OnlyTheOneThatCanIsServed(t *testing.T) {
	ctx := preemption(t)
	namespace, away := createNamespace(ctx, t, nil), createNamespace(ctx, t, nil)
	r := request("gpu", env.Driver)
	r.Exactly.Count = 5
	createRequests(ctx, t, namespace, "guard", "", r)
	createPod(ctx, t, namespace, "guard", "guard", prioritized("e2e-high", func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}, Namespaces: []string{away},
			}},
		}}
	}))
	waitRunning(ctx, t, namespace, "guard")
	hour, now := int64(3600), int64(0)
	createClaim(ctx, t, namespace, "slow", "")
	createPod(ctx, t, namespace, "slow", "slow", prioritized("e2e-high", func(spec *corev1.PodSpec) {
		spec.TerminationGracePeriodSeconds = &hour
		spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: hour}}}
	}))
	waitRunning(ctx, t, namespace, "slow")
	startNotebooks(ctx, t, namespace, 1)
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, "slow", metav1.DeleteOptions{}))
	t.Cleanup(func() {
		must(t, cluster.Client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), "slow", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})

	for name, change := range map[string]func(*corev1.PodSpec){
		"volume": func(spec *corev1.PodSpec) {
			spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"},
			}}}
		},
		"spread": func(spec *corev1.PodSpec) {
			spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "e2e/rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{},
			}}
		},
		"scheduler": func(spec *corev1.PodSpec) { spec.SchedulerName = "none" },
	} {
		createClaim(ctx, t, namespace, name, "")
		createPod(ctx, t, namespace, name, name, prioritized("e2e-high", change))
	}
	createClaim(ctx, t, away, "kept", "")
	createPod(ctx, t, away, "kept", "kept", prioritized("e2e-high"))
	for i := range 10 {
		r := request("gpu", env.Driver)
		r.Exactly.Count = int64(9 + i)
		name := fmt.Sprint("large-", i)
		createRequests(ctx, t, namespace, name, "", r)
		createPod(ctx, t, namespace, name, name, prioritized("e2e-high"))
	}
	for _, one := range [][2]string{{namespace, "volume"}, {namespace, "spread"}, {away, "kept"}, {namespace, "large-9"}} {
		waitUnschedulable(ctx, t, one[0], one[1])
	}
	// The searches and the pauses between them are over.
	select {
	case <-ctx.Done():
	case <-time.After(75 * time.Second):
	}
	if all := messages(ctx, t, namespace, "Preempted"); len(all) > 0 || len(notebooks(ctx, t, namespace)) != 2 {
		t.Fatalf("evicted: %q", all)
	}
	createClaim(ctx, t, namespace, "train", "")
	began := time.Now()
	train := createPod(ctx, t, namespace, "train", "train", prioritized("e2e-high"))
	checkPod(ctx, t, waitRunningFor(ctx, t, namespace, "train", time.Minute))
	t.Logf("the pod runs %.1f s after its creation", time.Since(began).Seconds())
	if all := messages(ctx, t, namespace, "Preempted"); len(all) != 1 || !strings.Contains(all[0], "Preempted by pod "+string(train.UID)) {
		t.Errorf("evicted: %q", all)
	}
}
